"""Spark's own offset and batch commit logs of one streaming query.

Spark owns the directory. This module reads it, and writes into it only while the query is stopped: an entry of the offset log, which
Spark then runs as one batch (a drain, a release of the watermark, a batch that ends at a pin); and, before a query's first start, batches
that an old query has read.

Invariants:

1. ``offsets/N+1`` is written only if batch N is committed, because Spark silently skips an uncommitted batch below the latest entry.
2. An entry is only replaced while its batch is not committed.
3. Unknown keys are kept.
4. Files that this module writes have no Hadoop checksum, because it would be that of the old bytes.
5. In a store, where each look costs a request, the log of a running query is remembered. A work directory in a store belongs to one
   attempt, which runs one query of a stage. Entries change only by this module, and no batch is committed before :meth:`SparkLog.begun`.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage import checksums
from spark_jobs.storage.files import Files, is_mounted

NO_BATCH = BatchId(-1)
"""The last batch of a query without batches."""
OFFSETS_VERSION = "v1"
"""The version of the offset log's entries that this runtime reads and writes."""
_REMEMBERED = 100
"""The number of batches whose entries are remembered, as many as Spark keeps."""
_COMMITS_VERSION = "v2"
"""The version of the commit log's entries with ``spark.sql.streaming.stateStore.checkpointFormatVersion=2``, which all our sessions have.
"""


def checkpoint_directory(stage: StageName) -> str:
    """Returns the directory for the logs and the state of a stage's query in a work directory."""
    return f"stages/{stage}/checkpoint"


@dataclass(frozen=True)
class OffsetEntry:
    """One entry of the offset log: the input of a batch and its watermark."""

    version: str
    header: dict[str, Any]
    sources: tuple[str, ...]
    """The end of each source as the source wrote it, in the order of the plan; ``-`` for none."""

    @property
    def watermark_ms(self) -> int:
        return int(self.header["batchWatermarkMs"])

    def with_sources(self, sources: tuple[str, ...]) -> "OffsetEntry":
        return replace(self, sources=sources)

    def with_watermark(self, watermark_ms: int) -> "OffsetEntry":
        return replace(self, header=self.header | {"batchWatermarkMs": watermark_ms})

    def to_bytes(self) -> bytes:
        return "\n".join([self.version, json.dumps(self.header), *self.sources]).encode()


class SparkLog:
    """The logs of the query whose Spark checkpoint is ``directory`` of a work directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self._begun: BatchId | None = None
        """The newest batch that the running query has begun, in a store. None: nothing is remembered."""
        self._committed = NO_BATCH
        self._entries: dict[BatchId, str] = {}
        """Entries of the offset log. Replaced as a whole: a read that began before keeps its entry in the old one."""

    def begun(self, batch: BatchId) -> None:
        """Called with each batch when the running query begins it, before it can be committed."""
        if not is_mounted(self.files):
            self._begun = batch
            self._entries = {number: text for number, text in self._entries.items() if number >= batch - _REMEMBERED}

    def last_offsets(self) -> BatchId:
        """Returns the newest planned batch, or -1."""
        return max(self._batches("offsets"), default=NO_BATCH)

    def first_offsets(self) -> BatchId:
        """Returns the oldest batch whose plan Spark has kept, or 0."""
        return min(self._batches("offsets"), default=BatchId(0))

    def last_commit(self) -> BatchId:
        """Returns the newest batch that Spark has committed, or -1."""
        begun = self._begun
        if begun is not None and self._committed >= begun:
            return self._committed
        found = max(self._batches("commits"), default=NO_BATCH)
        if begun is not None:
            self._committed = found
        return found

    def pending(self) -> bool:
        """Returns True if a batch was planned and not committed."""
        return self.last_offsets() > self.last_commit()

    def has_state(self) -> bool:
        """Returns True if the query keeps state. Spark creates its directory with the first batch of a stateful operator, and only then."""
        return bool(self.files.names(f"{self.directory}/state"))

    def offsets(self, batch: BatchId) -> OffsetEntry:
        """Returns a planned batch.

        Raises:
            NotFoundError: The batch was never planned, or was purged.
            UnsupportedFormatError: Spark wrote a version that this runtime does not know.
        """
        path = f"{self.directory}/offsets/{batch}"
        try:
            version, _, rest = self._entry(batch).partition("\n")
            if version != OFFSETS_VERSION:
                raise UnsupportedFormatError(
                    f"{path} is an offset log entry of version {version!r}; this runtime writes and reads {OFFSETS_VERSION}.",
                    remedy="Run with spark.sql.streaming.offsetLog.formatVersion=1, from a fresh start.",
                    path=path,
                    found=version,
                )
            header, *sources = rest.split("\n")
            return OffsetEntry(version, json.loads(header), tuple(sources))
        except ValueError as error:
            raise _damaged(path, "entry of Spark's offset log", error) from error

    def offsets_text(self, batch: BatchId) -> str:
        """Returns the text of a planned batch's entry. Planning it again with this text plans the same batch.

        Raises:
            NotFoundError: The batch was never planned, or Spark has purged it.
        """
        return self._entry(batch)

    def facts(self, batch: BatchId) -> dict[str, Any]:
        """Returns the logs' facts about a committed batch, or :data:`NO_BATCH`, as fields of a stage's cut.

        Raises:
            NotFoundError: Spark has purged the batch.
        """
        none = batch == NO_BATCH
        found = {
            "query": self.query_id() or "",
            "batch": batch,
            "offsets_sha256": "" if none else sha256(self.files.read(f"{self.directory}/offsets/{batch}")),
            "commits_sha256": "" if none else sha256(self.files.read(f"{self.directory}/commits/{batch}")),
        }
        applied_ms, next_ms = (None, 0) if none else self._watermarks_ms(batch)
        return found | {"watermark_ms": next_ms, "applied_watermark_ms": applied_ms}

    def next_watermark_ms(self, batch: BatchId) -> int:
        """Returns the watermark after a committed batch."""
        return self._watermarks_ms(batch)[1]

    def _watermarks_ms(self, batch: BatchId) -> tuple[int, int]:
        """Returns the watermark that a committed batch saw, and the one after it."""
        lines = self.files.read(f"{self.directory}/commits/{batch}").decode().split("\n")
        applied_ms = self.offsets(batch).watermark_ms
        return applied_ms, max(int(json.loads(lines[1])["nextBatchWatermarkMs"]), applied_ms)

    def query_id(self) -> str | None:
        """Returns Spark's id of the query, or None before its first start.

        Raises:
            CorruptDocumentError: The file with the id was altered.
        """
        path = f"{self.directory}/metadata"
        try:
            return str(json.loads(self.files.read(path))["id"])
        except NotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise _damaged(path, "metadata file of a query", error) from error

    def plan(self, batch: BatchId, entry: OffsetEntry) -> None:
        """Plans the batch after the last committed one. Spark runs it at its next start.

        Raises:
            CorruptDocumentError: It is not the next batch. Spark would silently skip one.
        """
        self.plan_again(batch, entry.to_bytes().decode())

    def plan_again(self, batch: BatchId, text: str) -> None:
        """Plans the batch after the last committed one with its earlier plan; see :meth:`offsets_text` and :meth:`plan`."""
        if self.pending() or batch != self.last_commit() + 1:
            raise self._out_of_turn(f"Batch {batch} of {self.directory} cannot be planned")
        with step(Step.PLAN_BATCH):
            self._create(f"offsets/{batch}", text.encode())

    def last_batch(self) -> BatchId:
        """Returns the newest batch. All planned ones must be committed.

        Raises:
            CorruptDocumentError: A batch is planned but was not run. A checkpoint would leave out its rows.
        """
        if self.pending():
            raise self._out_of_turn(f"{self.directory} cannot be cut")
        return self.last_commit()

    def replan(self, batch: BatchId, entry: OffsetEntry) -> None:
        """Replaces the entry of a planned batch that is not committed."""
        if batch <= self.last_commit():
            raise CorruptDocumentError(
                f"Batch {batch} of {self.directory} is committed and cannot be planned again.",
                safe="Nothing was written.",
                remedy="Report this.",
                path=self.directory,
            )
        self.rewrite(batch, entry)

    def unplan(self, batch: BatchId) -> None:
        """Deletes the plan of a batch that is not committed and has staged nothing."""
        if batch <= self.last_commit():
            raise self._out_of_turn(f"Batch {batch} of {self.directory} cannot be given up")
        path = f"{self.directory}/offsets/{batch}"
        self._forget()
        with step(Step.PLAN_BATCH):
            checksums.forget_checksum(self.files, path)
            self.files.delete(path)

    def rewrite(self, batch: BatchId, entry: OffsetEntry) -> None:
        """Replaces an entry durably."""
        self._forget()
        with step(Step.PLAN_BATCH):
            checksums.rewrite(self.files, f"{self.directory}/offsets/{batch}", entry.to_bytes())

    def begin(self, query_id: str) -> None:
        """Gives a new query its id. Idempotent."""
        self._create("metadata", json.dumps({"id": query_id}).encode())

    def rename(self, query_id: str) -> None:
        """Gives a query another id, durably. It belongs to another query from now on."""
        path = f"{self.directory}/metadata"
        checksums.rewrite(self.files, path, json.dumps(json.loads(self.files.read(path)) | {"id": query_id}).encode())

    def leave_watermark(self, batch: BatchId, watermark_ms: int) -> None:
        """Sets the watermark with which the next batch after a committed one begins, durably."""
        path = f"{self.directory}/commits/{batch}"
        version, _, body = self.files.read(path).decode().partition("\n")
        entry = json.loads(body) | {"nextBatchWatermarkMs": watermark_ms}
        checksums.rewrite(self.files, path, f"{version}\n{json.dumps(entry)}".encode())

    def commit(self, batch: BatchId) -> None:
        """Commits a planned batch that Spark must not run, without state and with the lowest watermark. Idempotent."""
        commit = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {}})
        with step(Step.COMMIT_BATCH):
            self._create(f"commits/{batch}", "\n".join([_COMMITS_VERSION, commit]).encode())

    def _entry(self, batch: BatchId) -> str:
        begun, entries = self._begun, self._entries
        text = entries.get(batch)
        if text is None:
            text = self.files.read(f"{self.directory}/offsets/{batch}").decode()
            if begun is not None:
                entries[batch] = text
        return text

    def _forget(self) -> None:
        """Forgets the log before this module writes to it. The query is stopped. Its next start is remembered from its first batch on."""
        self._begun, self._committed, self._entries = None, NO_BATCH, {}

    def _create(self, name: str, data: bytes) -> None:
        self._forget()
        if is_mounted(self.files):  # Hadoop writes no checksum into a store
            checksums.forget_checksum(self.files, f"{self.directory}/{name}")
        self.files.create(f"{self.directory}/{name}", data)

    def _batches(self, log: str) -> list[BatchId]:
        return [BatchId(int(name)) for name in self.files.names(f"{self.directory}/{log}") if name.isdigit()]

    def _out_of_turn(self, what: str) -> CorruptDocumentError:
        return CorruptDocumentError(
            f"{what}: planned up to {self.last_offsets()}, committed up to {self.last_commit()}.",
            safe="Nothing was written. A batch would have been skipped.",
            remedy=f"Report this, and {BEGIN_ANEW}.",
            path=self.directory,
        )


def _damaged(path: str, what: str, error: Exception) -> CorruptDocumentError:
    return CorruptDocumentError(
        f"{path} is not a complete {what}: {error}.",
        safe="The file was not used.",
        remedy=f"Restore the work directory from a copy, or {BEGIN_ANEW}.",
        path=path,
    )
