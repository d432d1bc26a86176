"""One stage of a round: built from its inputs, run to their end, then drained or released.

Every method can be repeated after a crash: what has happened is read from Spark's logs and the private log, never remembered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.api.stage import Stage
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import StageCut
from spark_jobs.protocol.errors import InterruptedRunError, InvalidPipelineError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.publication.delta_jvm import java_message
from spark_jobs.runtime.bounds import Bound
from spark_jobs.runtime.cancellation import Cancellation
from spark_jobs.runtime.heartbeat import Heartbeat
from spark_jobs.runtime.log_folding import Consumer, fold_consumed
from spark_jobs.runtime.outlets import Outlet
from spark_jobs.runtime.plan import feeds_another_operator
from spark_jobs.runtime.private_log import PrivateLog
from spark_jobs.runtime.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staging import BeforeEpochError, PastPinError, StageWriter
from spark_jobs.runtime.tables import StagingTable
from spark_jobs.runtime.watermark import BEGINNING_OF_TIME_MS, END_OF_TIME_MS, release_watermark_ms
from spark_jobs.storage.files import Files

DRAIN_BATCHES_MAX = 1_000
"""A timer that always sets another one never ends; a chain of timers this long is taken for one."""
_POLL_S = 1
_SEVERAL_OPERATORS = "spark.sql.streaming.statefulOperator.allowMultiple"
_MESSAGE_MAX = 2_000


@dataclass(frozen=True)
class InputWatermark:
    """The watermark that the runtime put on one input of a stage."""

    node: str
    delay_ms: int
    """The declared delay; 0 where none is."""
    held: bool


@dataclass(frozen=True)
class StageOutput:
    """What a stage's consumers read."""

    log: PrivateLog
    event_time: str | None
    delay_ms: int | None
    held: bool
    consumers: list[Consumer] = field(default_factory=list)
    """Every stage that is built on this one adds itself, before anything runs."""


@dataclass(frozen=True)
class StageRun:
    """A stage with everything it needs to run. Made by :func:`spark_jobs.runtime.build.build_stage`."""

    stage: Stage
    query_name: str
    frame: DataFrame
    checkpoint_path: str
    outlet: Outlet
    directory: Files
    """The directory that files are staged in."""
    file_prefix: str
    spark_log: SparkLog
    output: StageOutput
    upstream: Sequence[StageOutput]
    """What the stage consumes of other stages."""
    bounds: Sequence[Bound]
    watermarks: Mapping[InputName, InputWatermark]
    has_timers: bool
    undrained: tuple[str, ...]
    """Operators whose state a drain does not empty."""
    heartbeat: Heartbeat
    cancellation: Cancellation
    adopted: Sequence[AdoptedOffsets] = ()
    """Where old queries stopped, in the order of ``bounds``; empty where the inputs are read from their beginning."""

    @property
    def table(self) -> StagingTable:
        """The Delta table in whose directory files are staged."""
        return self.outlet.staged_in

    @property
    def log(self) -> PrivateLog:
        return self.output.log

    def run_to_end(self) -> None:
        """Stages every row of the inputs up to their ends. Idempotent.

        Raises:
            InterruptedRunError: The stage's query failed; a later start goes on after its last batch.
        """
        self.heartbeat.expect(self.stage.name, self._rows_expected())
        while True:
            if self.spark_log.pending():
                failure = self._run(once=True)
            elif self._consumed():
                return
            else:
                failure = self._run(availableNow=True)
                if failure is None and not self._plan_passed_over():
                    return
            if isinstance(failure, PastPinError):
                self._cut_back(self.spark_log.last_offsets())
            elif isinstance(failure, BeforeEpochError):
                self._begin_before_epoch(self.spark_log.last_offsets())

    def drain(self) -> None:
        """Moves the watermark to the end of time, so that every window, join and timer is flushed. Idempotent.

        A stage that keeps no state is drained as it is: a batch without rows would let nothing go, and its consumers have watermarks
        of their own.

        Raises:
            RejectedError: Timers keep setting timers.
            InterruptedRunError: The stage's query failed.
        """
        for _ in range(DRAIN_BATCHES_MAX):
            last = self.spark_log.last_commit()
            if last == NO_BATCH or not self.spark_log.has_state():
                return  # nothing to flush; without any input there is no entry to plan the batch from either
            entry = self.spark_log.offsets(last)
            if entry.watermark_ms >= END_OF_TIME_MS and not self.has_timers:
                return
            self.spark_log.plan(BatchId(last + 1), entry.with_watermark(END_OF_TIME_MS))
            self._run_planned()
            if not self.has_timers or not self.heartbeat.timers_registered(self.stage.name):
                return
        raise RejectedError(
            f"Stage '{self.stage.name}' cannot be drained: after {DRAIN_BATCHES_MAX} batches its timers still set new ones.",
            safe="Nothing was published.",
            remedy="Let handleExpiredTimer set no timer when the watermark is at 9999-12-31.",
            stage=self.stage.name,
        )

    def release(self) -> None:
        """Moves a held watermark to where the round leaves it; what closes by that is flushed. Idempotent."""
        last = self.spark_log.last_commit()
        if last == NO_BATCH or not any(mark.held for mark in self.watermarks.values()):
            return
        staged = self.log.read(last)
        newest = {InputName(name): event_ms for name, event_ms in (staged.newest_event_ms if staged else {}).items()}
        target = release_watermark_ms(newest, {name: mark.delay_ms for name, mark in self.watermarks.items()})
        if target is None or target <= self.spark_log.next_watermark_ms(last):
            return
        self.spark_log.plan(BatchId(last + 1), self.spark_log.offsets(last).with_watermark(target))
        self._run_planned()

    def cut(self, after: BatchId, *, drained: bool) -> StageCut:
        """Where the stage is, and what it staged after batch ``after``."""
        last = self.spark_log.last_batch()
        rows = late_rows = 0
        for staged in self.log.between(after, last):
            rows, late_rows = rows + staged.rows, late_rows + staged.late_rows
        none = last == NO_BATCH
        return StageCut(
            query=self.spark_log.query_id() or "",
            batch=last,
            offsets_sha256="" if none else self.spark_log.offsets_sha256(last),
            commits_sha256="" if none else self.spark_log.commits_sha256(last),
            watermark_ms=0 if none else self.spark_log.next_watermark_ms(last),
            finished=drained,
            drained=drained,
            drain_batches=self._drain_batches(last),
            undrained=self.undrained,
            rows=rows,
            late_rows=late_rows,
        )

    def _drain_batches(self, last: BatchId) -> int:
        batch, count = last, 0
        oldest = self.spark_log.first_offsets()
        while batch >= oldest and self.spark_log.offsets(batch).watermark_ms >= END_OF_TIME_MS:
            batch, count = BatchId(batch - 1), count + 1
        return count

    def _rows_expected(self) -> int | None:
        last = self.spark_log.last_commit()
        lines = (None,) * len(self.bounds) if last == NO_BATCH else self.spark_log.offsets(last).sources
        rows = [bound.rows_expected(line) for bound, line in zip(self.bounds, lines, strict=True)]
        return sum(count for count in rows if count is not None) if None not in rows else None

    def _consumed(self) -> bool:
        last = self.spark_log.last_commit()
        if last == NO_BATCH:
            return False
        return all(bound.reached(line) for bound, line in zip(self.bounds, self.spark_log.offsets(last).sources, strict=True))

    def _cut_back(self, batch: BatchId) -> None:
        entry = self.spark_log.offsets(batch)
        previous = self.spark_log.offsets(BatchId(batch - 1)).sources if batch > 0 else (None,) * len(entry.sources)
        lines = tuple(
            bound.cut_back(before, line) if bound.exceeded(before, line) else line
            for bound, before, line in zip(self.bounds, previous, entry.sources, strict=True)
        )
        self.spark_log.replan(batch, entry.with_sources(lines))

    def _plan_passed_over(self) -> bool:
        """Plans a batch of what Spark has found nothing new in although it is before the ends; whether there is any."""
        last = self.spark_log.last_commit()
        if last == NO_BATCH:
            return False
        entry = self.spark_log.offsets(last)
        lines = tuple(bound.passed_over(line) or line for bound, line in zip(self.bounds, entry.sources, strict=True))
        if lines == entry.sources:
            return False
        watermark_ms = self.spark_log.next_watermark_ms(last)
        self.spark_log.plan(BatchId(last + 1), entry.with_sources(lines).with_watermark(watermark_ms))
        return True

    def _begin_before_epoch(self, batch: BatchId) -> None:
        """Plans a batch again with a watermark before all history.

        Raises:
            InvalidPipelineError: What one operator lets go when the watermark moves would be late for the next one.
        """
        if feeds_another_operator(self.frame):
            raise InvalidPipelineError(
                f"Stage '{self.stage.name}' has rows before 1970 and stateful operators one after the other: Spark would drop rows.",
                exists=f"Its batches up to {self.spark_log.last_commit()} are staged.",
                safe="Nothing of this round is public.",
                remedy="Put each window, join or timer into a stage of its own, or leave those rows out; then start with --fresh.",
                stage=self.stage.name,
            )
        self.spark_log.replan(batch, self.spark_log.offsets(batch).with_watermark(BEGINNING_OF_TIME_MS))

    def _is_before_epoch(self) -> bool:
        last = self.spark_log.last_offsets()
        return last != NO_BATCH and self.spark_log.offsets(last).watermark_ms < 0

    def _run_planned(self) -> None:
        failure = self._run(once=True)
        if failure is not None:
            raise failure

    def _run(self, **trigger: bool) -> PastPinError | BeforeEpochError | None:
        """Runs the query until it ends by itself. What only needs another plan is returned, everything else raised."""
        writer = StageWriter(
            stage=self.stage.name,
            table_path=str(self.table.path),
            table=self.directory,
            file_prefix=self.file_prefix,
            schema=self.table.schema,
            spark_log=self.spark_log,
            private_log=self.log,
            bounds=self.bounds,
            inputs_by_watermark={mark.node: name for name, mark in self.watermarks.items()},
            held=any(mark.held for mark in self.watermarks.values()),
            after_batch=self._fold_logs,
            unique_keys=self._unique_keys(),
        )
        self.cancellation.check()
        query = self._start(writer, trigger)
        try:
            while not query.awaitTermination(_POLL_S):
                self.heartbeat.observe(self.stage.name, query)
                self.cancellation.check()
        except StreamingQueryException as error:
            if isinstance(writer.failure, PastPinError | BeforeEpochError):
                return writer.failure
            if writer.failure is not None and not isinstance(writer.failure, Exception):
                raise writer.failure from None
            raise self._interrupted(writer.failure or error) from error
        except BaseException:
            query.stop()
            raise
        self.heartbeat.observe(self.stage.name, query)
        return None

    def _unique_keys(self) -> tuple[str, ...]:
        """The columns whose values a batch may have once: without ``sequence_by`` nothing says which of two rows is the newer one."""
        rule = self.outlet.upsert
        return rule.keys if rule and rule.sequence_by is None else ()

    def _start(self, writer: StageWriter, trigger: dict[str, Any]) -> StreamingQuery:
        if self._is_before_epoch():  # where Spark works out a watermark per operator, it takes one before 1970 for 1970
            self.frame.sparkSession.conf.set(_SEVERAL_OPERATORS, "false")
        stream = self.frame.writeStream.queryName(self.query_name).option("checkpointLocation", self.checkpoint_path)
        try:
            query = stream.foreachBatch(writer).outputMode(self.stage.output_mode.value).trigger(**trigger).start()
        except AnalysisException as error:
            raise InvalidPipelineError(
                f"Spark cannot run stage '{self.stage.name}' as a stream: {str(error).splitlines()[0]}",
                safe="Nothing was staged.",
                remedy="Change the stage; windows and joins need an event time (event_time= on the source).",
                stage=self.stage.name,
            ) from error
        writer.query.set_result(query)
        return query

    def _fold_logs(self) -> None:
        for output in (self.output, *self.upstream):
            fold_consumed(output.log, output.consumers)

    def _interrupted(self, cause: Exception) -> StreamPipelineError:
        if isinstance(cause, StreamPipelineError):
            return cause
        text = java_message(cause)
        if len(text) > _MESSAGE_MAX:  # a Python traceback says what happened in its last line
            text = f"... {text[-_MESSAGE_MAX:].partition(' ')[2]}"  # no half of a word: it might be half of a secret
        return InterruptedRunError(
            f"Stage '{self.stage.name}' failed in batch {self.spark_log.last_offsets()}: {text}",
            exists=f"Its batches up to {self.spark_log.last_commit()} are staged.",
            safe="Nothing of this round is public.",
            remedy="Mend the cause and run it again: it goes on after the last staged batch.",
            stage=self.stage.name,
            batch=self.spark_log.last_offsets(),
        )
