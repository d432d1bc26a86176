"""A stage's private Delta log: what the stage has staged, batch by batch, and the channel that its consumers stream from.

Invariants:

1. Version 0 holds protocol and metadata; version b + 1 is what batch b staged. A batch without rows has an empty version.
2. A version appears whole and never changes; it carries the hash of the batch's entry in Spark's offset log. Only version 0 is
   replaced, where the table has gained columns.
"""

import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files

STAGE_OPERATION = "STAGE"


@dataclass(frozen=True)
class StagedBatch:
    """What one batch of a stage staged."""

    batch: BatchId
    offsets_sha256: str
    rows: int
    late_rows: int
    newest_event_ms: dict[str, int]
    """By input with an event time: the newest one that this batch or any before it saw."""
    adds: tuple[dict[str, Any], ...]
    """Delta ``add`` actions with paths relative to the table."""


class PrivateLog:
    """The private log in ``directory`` of a work directory, for files that lie in the table at ``table_url``."""

    def __init__(self, files: Files, directory: str, table_url: str) -> None:
        self._files = files
        self._directory = directory
        self._table_url = table_url
        self.table_id = str(uuid5(NAMESPACE_URL, f"{files.url}/{directory}"))

    @property
    def url(self) -> str:
        return f"{self._files.url}/{self._directory}"

    @property
    def path(self) -> str:
        """The directory, for Hadoop's file system of this host."""
        return self.url.removeprefix("file://")

    def begin(self, metadata: dict[str, Any], protocol: dict[str, Any], facts: dict[str, str], *, widened: bool = False) -> bool:
        """Writes version 0 with a table's own metadata and protocol, once; what stands is kept.

        No query may be reading the log.

        Args:
            metadata: The table's.
            protocol: The table's.
            facts: What the table is, in publication's terms; see :meth:`facts`.
            widened: Whether the table has only gained nullable columns since: then version 0 is replaced, and what was staged before has
                nulls there.

        Returns:
            Whether version 0 was replaced.

        Raises:
            UnsupportedTableError: The log was begun for another table, or for another schema or protocol of it.
        """
        first = _version(facts, [{"protocol": protocol}, {"metaData": metadata | {"id": self.table_id}}])
        if not self.exists():
            with step(Step.LOG_CREATE):
                self._files.create(self._path(0), first)
            return False
        replaced = widened and self.schema() != metadata["schemaString"]
        if replaced and self._unchanged(facts, except_for="schema_sha256"):
            with step(Step.LOG_WIDEN):
                self._files.replace(self._path(0), first)
        changed = sorted(name for name, value in self.facts().items() if facts.get(name) != value)
        if changed:
            raise UnsupportedTableError(
                f"Table {self._table_url} was changed since its first rows were staged: {', '.join(changed)}.",
                exists="The rows so far were staged for the table as it was.",
                safe="Nothing was written.",
                remedy="Undo the change and start again, or begin anew with --fresh.",
                table=self._table_url,
                expected=self.facts(),
                found=facts,
            )
        return replaced

    def schema(self) -> str:
        """The schema that consumers see, as Delta writes it."""
        actions = [json.loads(line) for line in self._files.read(self._path(0)).decode().splitlines()]
        return next(str(action["metaData"]["schemaString"]) for action in actions if "metaData" in action)

    def facts(self) -> dict[str, str]:
        """What the table was when the log was begun: every batch in it was staged for that."""
        first = json.loads(self._files.read(self._path(0)).decode().splitlines()[0])
        found: dict[str, str] = json.loads(first["commitInfo"]["userMetadata"])
        return found

    def exists(self) -> bool:
        return bool(self._files.names(f"{self._directory}/_delta_log"))

    def latest(self) -> int:
        """The newest version; -1 where the log is not begun."""
        names = self._files.names(f"{self._directory}/_delta_log")
        return max((int(name.removesuffix(".json")) for name in names if name.endswith(".json")), default=-1)

    def append(self, staged: StagedBatch) -> None:
        """Makes a batch's version, whole and durable. Batch ids that never reached the sink get an empty version before it.

        Raises:
            AlreadyExistsError: The batch has a version already.
        """
        for missing in range(self.latest() + 1, staged.batch + 1):
            self._write(missing, _facts(replace(staged, offsets_sha256="", rows=0, late_rows=0)), [])
        adds = [{"add": add | {"path": f"{self._table_url}/{add['path']}"}} for add in staged.adds]
        with step(Step.STAGE_VERSION):
            self._write(staged.batch + 1, _facts(staged), adds)

    def read(self, batch: BatchId) -> StagedBatch | None:
        """What a batch staged; None where it has no version yet."""
        if batch + 1 > self.latest():
            return None
        actions = [json.loads(line) for line in self._files.read(self._path(batch + 1)).decode().splitlines()]
        facts = json.loads(actions[0]["commitInfo"]["userMetadata"])
        prefix = f"{self._table_url}/"
        adds = tuple(a["add"] | {"path": a["add"]["path"].removeprefix(prefix)} for a in actions if "add" in a)
        return StagedBatch(batch, adds=adds, **facts)

    def between(self, after: BatchId, last: BatchId) -> list[StagedBatch]:
        """What the batches after ``after`` up to ``last`` staged."""
        found = (self.read(BatchId(batch)) for batch in range(after + 1, last + 1))
        return [staged for staged in found if staged is not None]

    def _unchanged(self, facts: dict[str, str], except_for: str) -> bool:
        before = self.facts()
        return all(facts.get(name) == value for name, value in before.items() if name != except_for)

    def _write(self, version: int, facts: dict[str, Any], actions: list[dict[str, Any]]) -> None:
        self._files.create(self._path(version), _version(facts, actions))

    def _path(self, version: int) -> str:
        return f"{self._directory}/_delta_log/{version:020d}.json"


def _version(facts: dict[str, Any], actions: list[dict[str, Any]]) -> bytes:
    info = {
        "timestamp": 0,
        "operation": STAGE_OPERATION,
        "operationParameters": {},
        "userMetadata": canonical(facts).decode(),
    }
    return b"\n".join(canonical(action) for action in [{"commitInfo": info}, *actions]) + b"\n"


def _facts(staged: StagedBatch) -> dict[str, Any]:
    return {
        "offsets_sha256": staged.offsets_sha256,
        "rows": staged.rows,
        "late_rows": staged.late_rows,
        "newest_event_ms": staged.newest_event_ms,
    }
