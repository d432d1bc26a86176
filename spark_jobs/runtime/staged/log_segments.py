"""Segments: files with many batches of a stage each, which replace one version of the private log per batch (see ``private_log``).

Invariants:

1. Segments follow each other without a gap. A batch is in at most one.
2. A segment appears completely and never changes. Its last line is the hash of the lines before. The newest one is never deleted: it marks
   the end of the folded part.
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
    """Returns the error for a damaged file of a private log: a segment or a version."""
    return CorruptDocumentError(
        f"{url} is not a complete {part} of a private log.",
        exists="Complete checkpoints contain the part of the log that they need.",
        remedy="Start again: the work directory is built from the newest checkpoint.",
        path=url,
    )


class LogSegments:
    """The segments of one private log, in ``directory`` of a work directory. There is one writer, which lists them once."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._known: list[Segment] | None = None

    def all(self) -> list[Segment]:
        """Returns the segments, oldest first."""
        if self._known is None:
            ends = (name.removesuffix(".jsonl").split("-") for name in self._files.names(self._directory))
            self._known = sorted(Segment(BatchId(int(first)), BatchId(int(last))) for first, last in ends)
        return list(self._known)

    def folded(self) -> BatchId:
        """Returns the last batch in a segment, or -1 if there is none."""
        return segments[-1].last if (segments := self.all()) else NO_BATCH

    def oldest(self) -> BatchId:
        """Returns the first batch in the log."""
        return segments[0].first if (segments := self.all()) else BatchId(0)

    def write(self, segment: Segment, lines: Iterable[dict[str, Any]]) -> None:
        """Writes the next segment durably. The same segment again changes nothing."""
        data = b"".join(canonical(line) + b"\n" for line in lines)
        data += _seal(data)
        known = self.all()
        with step(Step.LOG_FOLD):
            self._known = None  # listed again if the create fails
            self._files.create(self._path(segment), data)
        self._known = [*known, segment]

    def read(self, segment: Segment) -> Iterator[dict[str, Any]]:
        """Yields the lines as they were written, by batch.

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
        """Returns the segments that end at ``until`` or before, oldest first, without the newest one."""
        return [segment for segment in self.all()[:-1] if segment.last <= until]

    def forget(self, segment: Segment) -> None:
        """Deletes the oldest segment. Idempotent."""
        known = self.all()
        with step(Step.LOG_TRIM):
            self._known = None
            self._files.delete(self._path(segment))
        self._known = [other for other in known if other != segment]

    def _path(self, segment: Segment) -> str:
        return f"{self._directory}/{segment.first}-{segment.last}.jsonl"


def _seal(data: bytes) -> bytes:
    return canonical({"sha256": sha256(data)}) + b"\n"
