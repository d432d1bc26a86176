"""Files that each hold what many batches of a stage staged, in place of one version of the private log for each (see ``private_log``).

Invariants:

1. Segments lie one after the other without a gap; a batch is in at most one.
2. A segment appears whole and never changes; its last line is the hash of those before. The newest one is never deleted: it says up
   to where the log is folded.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.errors import CorruptDocumentError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.storage.files import Files


@dataclass(frozen=True, order=True)
class Segment:
    """The batches from ``first`` to ``last``."""

    first: BatchId
    last: BatchId


def not_whole(url: str, part: str) -> CorruptDocumentError:
    """The error for a file of a private log that is not as it was written: a segment, or a version."""
    return CorruptDocumentError(
        f"{url} is not a whole {part} of a private log.",
        exists="Checkpoints that are complete hold what they need of the log.",
        safe="It was not used, and nothing was changed.",
        remedy="Start again: the work directory is built anew from the newest checkpoint.",
        path=url,
    )


class LogSegments:
    """The segments of one private log, in ``directory`` of a work directory. There is one writer, which lists them once."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._known: list[Segment] | None = None

    def all(self) -> list[Segment]:
        """The segments there are, the oldest first."""
        if self._known is None:
            ends = (name.removesuffix(".jsonl").split("-") for name in self._files.names(self._directory))
            self._known = sorted(Segment(BatchId(int(first)), BatchId(int(last))) for first, last in ends)
        return list(self._known)

    def folded(self) -> BatchId:
        """The last batch that is in a segment; -1 where there is none."""
        return segments[-1].last if (segments := self.all()) else NO_BATCH

    def oldest(self) -> BatchId:
        """The first batch that has not been forgotten."""
        return segments[0].first if (segments := self.all()) else BatchId(0)

    def write(self, segment: Segment, lines: Iterable[dict[str, Any]]) -> None:
        """Makes the next segment, durably; the same again changes nothing."""
        data = b"".join(canonical(line) + b"\n" for line in lines)
        data += _seal(data)
        known = self.all()
        with step(Step.LOG_FOLD):
            self._known = None  # listed again, should the create fail
            self._files.create(self._path(segment), data)
        self._known = [*known, segment]

    def read(self, segment: Segment) -> Iterator[dict[str, Any]]:
        """The lines as they were written, by batch.

        Raises:
            CorruptDocumentError: The segment is not the one that was written.
        """
        path = self._path(segment)
        lines = self._files.read(path).splitlines(keepends=True)
        if not lines or _seal(b"".join(lines[:-1])) != lines[-1]:
            raise not_whole(f"{self._files.url}/{path}", "segment")
        for line in lines[:-1]:
            try:
                found: dict[str, Any] = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise not_whole(f"{self._files.url}/{path}", "segment") from error
            yield found

    def forgettable(self, until: BatchId) -> list[Segment]:
        """The segments that end at ``until`` or before, the oldest first, without the newest one."""
        return [segment for segment in self.all()[:-1] if segment.last <= until]

    def forget(self, segment: Segment) -> None:
        """Deletes the oldest segment; idempotent."""
        known = self.all()
        with step(Step.LOG_TRIM):
            self._known = None
            self._files.delete(self._path(segment))
        self._known = [other for other in known if other != segment]

    def _path(self, segment: Segment) -> str:
        return f"{self._directory}/{segment.first}-{segment.last}.jsonl"


def _seal(data: bytes) -> bytes:
    return canonical({"sha256": sha256(data)}) + b"\n"
