"""Phase 1 of the two-phase commit: each batch's rows become Parquet files that only the stage's private log names (design, section 6)."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import InterruptedRunError, InvalidPipelineError
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.upsert import repeated_keys
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.spark.plan import BatchFacts, batch_facts, limit_kafka_streams
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.runtime.staged.staged_files import make_durable
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.tables.schemas import as_stored, fit
from spark_jobs.storage.files import Files


class PastPinError(Exception):
    """A batch reads past a recorded end; nothing of it was staged. Handled by the stage, never shown."""


class BeforeEpochError(Exception):
    """A batch had a watermark at 1970 and rows before it, which Spark dropped as late; nothing of it was staged.

    Handled by the stage, never shown.
    """


@dataclass
class StageWriter:
    """Stages a query's batches; given to ``foreachBatch``.

    What it raises is kept in :attr:`failure`, because Spark passes on only a text.
    """

    stage: StageName
    table_path: str
    table: Files
    """The table's directory."""
    file_prefix: str
    schema: StructType
    spark_log: SparkLog
    private_log: PrivateLog
    bounds: Sequence[Bound]
    inputs_by_watermark: Mapping[str, InputName]
    """Which input each watermark node of the running query belongs to."""
    held: bool
    gate: Gate
    """Every batch goes through it."""
    after_batch: Callable[[], None]
    """Called once a batch has its version."""
    unique_keys: tuple[str, ...] = ()
    """Columns whose values a batch may have once."""
    failure: BaseException | None = None
    query: Future[StreamingQuery] = field(default_factory=Future)
    """The query whose batches these are; the first one can come before Spark's start call has returned."""
    _told: bool = False
    """Whether the query's streams know our ends."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        try:
            with self.gate.batch(staged=batch < self.private_log.latest()):
                self._stage(frame, BatchId(batch))
        except BaseException as error:  # noqa: BLE001 - kept whole for the driver, which raises it
            self.failure = error
            raise RuntimeError(f"stage {self.stage}, batch {batch} was not staged: {type(error).__name__}") from None

    def _stage(self, frame: DataFrame, batch: BatchId) -> None:
        self._check_bounds(batch)
        self._tell_ends(batch)
        offsets = self.spark_log.offsets_text(batch)
        earlier = self.private_log.read(batch)
        fitted = fit(frame, self.schema)
        if earlier is not None:
            self._check_same(earlier, offsets, fitted.count())
            return
        with step(Step.STAGE_FILES):
            adds = DeltaJvm(frame.sparkSession).write_files(fitted, self.table_path, f"{self.file_prefix}{batch}-")
        self._check_unique(frame.sparkSession, batch, adds)
        facts = self._facts(batch)
        adds = make_durable(self.table, adds)
        self.private_log.append(
            StagedBatch(
                batch=batch,
                offsets=offsets,
                rows=sum(json.loads(add["stats"])["numRecords"] for add in adds),
                late_rows=facts.late_rows,
                newest_event_ms=self._newest_by_input(batch, facts),
                adds=tuple(adds),
            )
        )
        self.after_batch()

    def _check_unique(self, session: SparkSession, batch: BatchId, adds: Sequence[Mapping[str, Any]]) -> None:
        """Looks at the files, because a batch's frame can be computed only once."""
        if not self.unique_keys or not adds:
            return
        paths = [f"{self.table_path}/{unquote(add['path'])}" for add in adds]
        staged = session.read.schema(as_stored(self.schema)).parquet(*paths).toDF(*self.schema.names)
        if repeated := repeated_keys(staged, self.unique_keys):
            raise InvalidPipelineError(
                f"Batch {batch} of stage '{self.stage}' has {repeated} keys ({', '.join(self.unique_keys)}) more than once.",
                exists="The batches before it are staged.",
                safe="Nothing of this round is public.",
                remedy="Give the sink sequence_by=, which says which row wins, or return one row per key; then start with --fresh.",
                stage=self.stage,
                batch=batch,
                keys=list(self.unique_keys),
            )

    def _check_bounds(self, batch: BatchId) -> None:
        lines = self.spark_log.offsets(batch).sources
        previous = self.spark_log.offsets(BatchId(batch - 1)).sources if batch > 0 else [None] * len(lines)
        if any(bound.exceeded(before, line) for bound, before, line in zip(self.bounds, previous, lines, strict=True)):
            raise PastPinError

    def _tell_ends(self, batch: BatchId) -> None:
        """Each start of Spark finds an end of its own; told ours, its next batches need not be cut back and run by a start of their own."""
        lines = self.spark_log.offsets(batch).sources
        ends = [bound.available(line) for bound, line in zip(self.bounds, lines, strict=True)]
        if not self._told and any(ends):
            limit_kafka_streams(self.query.result(), ends)
        self._told = True

    def _facts(self, batch: BatchId) -> BatchFacts:
        facts = batch_facts(self.query.result())
        if self.held and self.spark_log.offsets(batch).watermark_ms == 0:
            # a query that starts with a batch without event times forgets a watermark before 1970, and would close windows too early
            forgotten = batch > 0 and self.spark_log.offsets(BatchId(batch - 1)).watermark_ms < 0
            if forgotten or facts.late_rows > 0:
                raise BeforeEpochError
        return facts

    def _newest_by_input(self, batch: BatchId, facts: BatchFacts) -> dict[str, int]:
        before = self.private_log.read(BatchId(batch - 1)) if batch > 0 else None
        newest = dict(before.newest_event_ms) if before else {}
        for node, event_ms in facts.newest_event_ms.items():
            name = self.inputs_by_watermark[node]
            newest[name] = max(newest.get(name, event_ms), event_ms)
        return newest

    def _check_same(self, earlier: StagedBatch, offsets: str, rows: int) -> None:
        """The first result of a batch stands; the second is only consumed, for the state's sake."""
        if earlier.offsets == offsets and earlier.rows == rows:
            return
        what = "other input" if earlier.offsets != offsets else f"{rows} rows after {earlier.rows}"
        raise InterruptedRunError(
            f"Batch {earlier.batch} of stage '{self.stage}' was computed twice and came to {what}: the stage is not deterministic.",
            exists="The first result is staged and not public.",
            safe="No table was changed.",
            remedy="Remove what differs between two runs of the same rows (random values, the clock, an unpinned static input), "
            "then start fresh (--fresh).",
            stage=self.stage,
            batch=earlier.batch,
            expected=earlier.rows,
            found=rows,
        )


def file_prefix(incarnation: str, stage: StageName) -> str:
    """What the names of a stage's staged files begin with, so that the sweep recognises those that nothing names.

    The batch follows, and ``-``.
    """
    return f"{sha256(f'{incarnation}/{stage}'.encode())[:16]}-"
