"""The ends of a stage's streams, and how a batch that reads past an end is cut back to it.

Spark's ``AvailableNow`` pins an end of its own at each start. What arrived between the recorded pin and that start would join the round, so
each batch is compared with the pin before it is staged; a batch past it is planned again with the pin as its end.

Each kind of source has a bound of its own, with everything else that is known of the kind: see :mod:`.source_kind`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

NO_OFFSET = "-"
_FILE_SYSTEMS = ("file:", "hdfs:", "viewfs:")
"""What is no object store. A store may tell a file's time to the millisecond in a list, and to the second if it is asked for one file."""


@dataclass(frozen=True)
class ExpectedFile:
    """A file as it was when it was found."""

    path: str
    """The URL."""
    timestamp_ms: int
    """The modification time."""
    size_bytes: int | None = None
    """The size; None if not pinned."""

    @property
    def is_in_store(self) -> bool:
        """Whether the file is in an object store, where it gets another modification time if it is put back."""
        return not self.path.startswith(_FILE_SYSTEMS)

    def difference(self, status: tuple[int, int] | None) -> str | None:
        """Returns in words how a file is another one than expected; None if it is the same.

        Args:
            status: The modification time and the size that it has now; None if it is gone.
        """
        if status is None:
            return "is gone"
        time_ms, size_bytes = status
        if self.size_bytes is not None and size_bytes != self.size_bytes:
            return f"has {size_bytes} bytes, and had {self.size_bytes}"
        unit_ms = 1000 if self.is_in_store else 1
        if time_ms // unit_ms != self.timestamp_ms // unit_ms:
            return f"was changed at {_moment(time_ms)}, and before at {_moment(self.timestamp_ms)}"
        return None


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


class Bound:
    """The end of one stream. One of this very class has none: each batch is as Spark plans it.

    ``previous`` and ``line`` are lines of Spark's offset log; ``previous`` is None in a query's first batch.
    """

    names_files: ClassVar[bool] = False
    """True if batches read files by name, which Spark leaves out where they have gone."""

    def exceeded(self, previous: str | None, line: str) -> bool:
        """Returns whether a batch that ends at ``line`` reads past the end."""
        return False

    def reached(self, line: str | None) -> bool:
        """Returns whether nothing is left after ``line``."""
        return False

    def cut_back(self, previous: str | None, line: str) -> str:
        """Returns the line that a batch which exceeded the end gets instead. Durable side effects are idempotent."""
        return line

    def passed_over(self, line: str) -> str | None:
        """Returns the line of a batch with what is left after ``line`` although Spark finds nothing new there; None if nothing is left.

        Durable side effects are idempotent.
        """
        return None

    def available(self, line: str) -> str | None:
        """Returns the line that Spark may take as its end in a query that has come to ``line``; None if Spark takes none."""
        return None

    def rows_expected(self, line: str | None) -> int | None:
        """Returns how many rows are left after ``line``; None if that is not known. For progress bars, never for a decision."""
        return None

    def files_between(self, previous: str | None, line: str) -> Mapping[str, ExpectedFile]:
        """Returns the files that a batch reads, by path; none if the stream names no files."""
        return {}

    def has_outgrown(self, previous: str | None, line: str) -> bool:
        """Returns whether a batch has columns, or values of wider types, that the stream was not made for and would leave out."""
        return False

    def unread(self, line: str | None) -> str | None:
        """Returns in words what is left unread after ``line``; None if nothing is, or if Spark itself watches over that.

        To be called once Spark has found nothing more to read.
        """
        return None
