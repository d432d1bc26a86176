"""The ends of a stage's streams, and how a batch that reads past an end is cut back to it.

Spark's ``AvailableNow`` pins its own end at each start. Rows that arrived between the recorded pin and that start would join the round, so
each batch is compared with the pin before it is staged; a batch past it is planned again with the pin as its end.

Each kind of source has its own bound: see :mod:`.source_kind`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

NO_OFFSET = "-"
_FILE_SYSTEMS = ("file:", "hdfs:", "viewfs:")
"""Prefixes of URLs that are not in an object store."""


@dataclass(frozen=True)
class ExpectedFile:
    """A file as it was found."""

    path: str
    """The URL."""
    timestamp_ms: int
    """The modification time."""
    size_bytes: int | None = None
    """The size; None if not pinned."""

    @property
    def is_in_store(self) -> bool:
        """True if the file is in an object store, where a restored file gets another modification time."""
        return not self.path.startswith(_FILE_SYSTEMS)

    @property
    def identity(self) -> tuple[str, int]:
        """Returns the path with the modification time: a later file under the same name has another identity.

        The time is in seconds in an object store: a store may list a file's time in milliseconds, and return it in seconds for one file.
        """
        return self.path, self.timestamp_ms // (1000 if self.is_in_store else 1)

    def difference(self, status: tuple[int, int] | None) -> str | None:
        """Returns the difference of a file from the expected one, in words. None if it is the same.

        Args:
            status: Its present modification time and size. None if it is missing.
        """
        if status is None:
            return "is gone"
        time_ms, size_bytes = status
        if self.size_bytes is not None and size_bytes != self.size_bytes:
            return f"has {size_bytes} bytes, but had {self.size_bytes}"
        if ExpectedFile(self.path, time_ms).identity != self.identity:
            return f"was changed at {_moment(time_ms)}, and before at {_moment(self.timestamp_ms)}"
        return None


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


class Bound:
    """The end of one stream. An instance of this base class has no end: each batch is as Spark plans it.

    ``previous`` and ``line`` are lines of Spark's offset log; ``previous`` is None in a query's first batch.
    """

    names_files: ClassVar[bool] = False
    """True if batches read files by name. Spark leaves out missing files."""

    def exceeded(self, previous: str | None, line: str) -> bool:
        """Returns True if a batch that ends at ``line`` reads past the end."""
        return False

    def reached(self, line: str | None) -> bool:
        """Returns True if no rows are left after ``line``."""
        return False

    def cut_back(self, previous: str | None, line: str) -> str:
        """Returns the new line of a batch that exceeds the end. Durable side effects are idempotent."""
        return line

    def passed_over(self, line: str) -> str | None:
        """Returns the line of a batch with the rows after ``line``, although Spark finds no new rows there. None if no rows are left.

        Durable side effects are idempotent.
        """
        return None

    def once_more(self, line: str) -> str:
        """Returns the line of a batch after ``line`` in which a clock gives another row. Other streams have no new rows in it."""
        return line

    def available(self, line: str) -> str | None:
        """Returns the line that Spark may use as its end in a query that has come to ``line``. None if Spark uses none."""
        return None

    def rows_expected(self, line: str | None) -> int | None:
        """Returns the number of rows after ``line``. None if it is not known. For progress bars, never for a decision."""
        return None

    def files_between(self, previous: str | None, line: str) -> Mapping[str, ExpectedFile]:
        """Returns the files that a batch reads, by path; none if the stream names no files."""
        return {}

    def has_outgrown(self, previous: str | None, line: str) -> bool:
        """Returns True if a batch has columns or wider types that the stream does not have and would leave out."""
        return False

    def unread(self, line: str | None) -> str | None:
        """Returns the unread rows after ``line``, in words. None if there are none, or if Spark itself checks that.

        Call it after Spark has found no more rows to read.
        """
        return None
