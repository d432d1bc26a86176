"""One stage of a round: built from its inputs, run to their end, then drained or released.

Every method can be repeated after a crash: the past is read from Spark's logs and the private log.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_jobs.protocol.errors import BEGIN_ANEW, InterruptedRunError, InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.ended_source import is_ended
from spark_jobs.runtime.inputs.lost_errors import without_it
from spark_jobs.runtime.inputs.source_kind import SourceStream
from spark_jobs.runtime.spark.plan import feeds_another_operator
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.channel_bound import ChannelBound
from spark_jobs.runtime.stages.built_stage import BuiltStage, InputWatermark
from spark_jobs.runtime.stages.left_in_state import left_in_state
from spark_jobs.runtime.stages.stage_query import StageQuery
from spark_jobs.runtime.stages.staging import PastPinError, RefusedRowsError, ReplanError
from spark_jobs.runtime.stages.watermark import BEGINNING_OF_TIME_MS, END_OF_TIME_MS, release_watermark_ms

_LOG = logging.getLogger(__name__)
DRAIN_BATCHES_MAX = 1_000
"""Maximum number of drain batches. A longer chain of timers counts as endless."""
_POLL_S = 1
"""The pause between two checks of a running query."""
BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"
_SEVERAL_OPERATORS = "spark.sql.streaming.statefulOperator.allowMultiple"


@dataclass(frozen=True)
class StageRun(BuiltStage):
    """Runs a stage that was built by :func:`spark_jobs.runtime.stages.build.build_stage`."""

    def run_to_end(self) -> None:
        """Stages every row of the inputs up to their ends. Idempotent.

        Raises:
            InterruptedRunError: The stage's query failed. A later start goes on after its last batch.
        """
        self.heartbeat.expect(self.stage.name, self._rows_expected())
        while True:
            if self.spark_log.pending():
                failure = self._run(**self._pending_trigger())
            elif self._consumed():
                return
            else:
                failure = self._run(availableNow=True)
                if failure is None and not self._plan_passed_over():
                    return
            if failure is not None:
                self.replan(failure)

    def leave_release_to_drain(self) -> None:
        """Turns off Spark's batch without rows at the end of the input. The drain that follows releases the same rows.

        A stage with timers keeps that batch: its handlers must see the watermark of the rows before they see the end of time.
        """
        if not self.has_timers:
            self.frame.sparkSession.conf.set(BATCHES_WITHOUT_ROWS, "false")

    def compute_table(self) -> None:
        """Computes the table of a stage that reads tables. Can be repeated.

        Computes it also if an earlier attempt has done so, because that result may lack rows.

        Raises:
            InterruptedRunError: The stage's query failed.
        """
        before = self.log.latest()
        self.run_to_end()
        if self.log.latest() > before:
            return
        last = self.spark_log.last_commit()
        entry = self.spark_log.offsets(last)
        lines = tuple(bound.once_more(line) for bound, line in zip(self.bounds, entry.sources, strict=True))
        self.spark_log.plan(BatchId(last + 1), entry.with_sources(lines))
        self.run_planned()

    def ended_inputs(self) -> frozenset[str]:
        """Returns the inputs whose rows are all in committed batches. Bounded inputs end at their pins."""
        last = self.spark_log.last_commit()
        if last == NO_BATCH:
            return self.ended
        lines = self.spark_log.offsets(last).sources
        left = {
            argument
            for argument, bound, line in zip(self.arguments, self.bounds, lines, strict=True)
            if not (self._may_end(bound) and bound.reached(line))  # in this order: a producer stages its last row, then ends
        }
        return self.ended | (set(self.arguments) - left)

    def not_begun(self, last: BatchId) -> frozenset[InputName]:
        """Returns the inputs with a stream that no batch up to ``last`` has read."""
        streams = zip(self.arguments, self._lines(last), strict=True)
        return frozenset(InputName(self.stage.inputs[argument].name) for argument, line in streams if line == NO_OFFSET)

    def _lines(self, last: BatchId) -> Sequence[str]:
        """Returns the line of Spark's offset log of each stream after a batch."""
        return (NO_OFFSET,) * len(self.arguments) if last == NO_BATCH else self.spark_log.offsets(last).sources

    def read_up_to(self, last: BatchId) -> list[SourceStream]:
        """Returns the streams of sources at the positions after batch ``last``."""
        if not any(self.sources):
            return []
        streams = zip(self.sources, self._lines(last), strict=True)
        return [replace(stream, read=replace(stream.read, line=line)) for stream, line in streams if stream is not None]

    def left_behind(self, last: BatchId) -> frozenset[InputName]:
        """Returns the inputs that had ended before batch ``last``. The batch has read empty streams instead of them."""
        if not self.ended or last == NO_BATCH:
            return frozenset()
        streams = zip(self.arguments, self.spark_log.offsets(last).sources, strict=True)
        return frozenset(InputName(self.stage.inputs[argument].name) for argument, line in streams if is_ended(line))

    def _may_end(self, bound: Bound) -> bool:
        """Returns True if no row can be added before this end. A channel ends with its producer."""
        return all(
            output.ended.is_set() for output in self.upstream if isinstance(bound, ChannelBound) and output.log is bound.log
        )

    def drain(self) -> None:
        """Advances the watermark to the end of time, so that every window, join and timer is flushed. Idempotent.

        A stage without state needs no drain: a batch without rows would release nothing, and its consumers have their own watermarks.

        Raises:
            RejectedError: Timers keep setting timers.
            InterruptedRunError: The stage's query failed.
        """
        for _ in range(DRAIN_BATCHES_MAX):
            last = self.spark_log.last_commit()
            if last == NO_BATCH or not self.spark_log.has_state():
                return  # nothing to flush; and without any batch there is no entry to plan from
            entry = self.spark_log.offsets(last)
            if entry.watermark_ms >= END_OF_TIME_MS and not self.has_timers:
                return self._check_drained()
            self.spark_log.plan(BatchId(last + 1), entry.with_watermark(END_OF_TIME_MS))
            self.run_planned()
            if not self.has_timers or not self.heartbeat.timers_registered(self.stage.name):
                return self._check_drained()
        raise RejectedError(
            f"Stage '{self.stage.name}' cannot be drained: after {DRAIN_BATCHES_MAX} batches its timers still set new ones.",
            safe="Nothing was published.",
            remedy="Let handleExpiredTimer set no timer when the watermark is at 9999-12-31.",
            stage=self.stage.name,
        )

    def _check_drained(self) -> None:
        """Refuses a state with a row that the watermark should have released.

        Raises:
            RejectedError: The state has such a row.
        """
        if not self.holds_back:
            return
        last = self.spark_log.last_commit()
        staged = self.log.read(last)
        counted = dict(staged.state_rows) if staged else {}
        left, keys = left_in_state(self.frame.sparkSession, self.checkpoint_path, last, counted, timers=self.has_timers)
        if left:
            words = ", ".join(
                f"{rows} {'row' if rows == 1 else 'rows'} of a {operator}" for operator, rows in sorted(left.items())
            )
            raise RejectedError(
                f"Stage '{self.stage.name}' is drained, but its state still has {words}, whose event times Spark cannot flush. "
                "Spark flushes no rows without an event time or near the end of the year 9999."
                + (f" Their keys: {'; '.join(keys)}." if keys else ""),
                exists="Everything else is staged.",
                safe="No row of this round is public.",
                remedy=f"Leave such rows out in the function of the source, and {BEGIN_ANEW}.",
                stage=self.stage.name,
                rows=left,
            )

    def flush(self) -> None:
        """Ends the stage at its present position: stages all rows of its producers, and drains it. Idempotent.

        Sources are not read any further, except that a stage with producers may read its sources up to their present end.

        Raises:
            RejectedError: Timers keep setting timers.
            InterruptedRunError: The stage's query failed.
        """
        self.leave_release_to_drain()
        planned = self.spark_log.last_offsets()
        if self.spark_log.pending() and self._reads_channels_only() and self.log.read(planned) is None:
            self.spark_log.unplan(planned)
        while self.spark_log.pending():
            failure = self._run(once=True)
            if failure is not None:
                self.replan(failure)
        if self.upstream and not self._is_drained():  # after a drain, further rows of its sources would be late
            if self._plan_rest_as_drain():
                self.run_planned()
            else:
                self.run_to_end()
        self.drain()

    def _plan_rest_as_drain(self) -> bool:
        """Plans the rows that are left in the channels and the drain as one batch. Returns False if they need two.

        In a batch, Spark compares late rows with the watermark of the batch before, and releases windows by its own. Only aggregations take
        all rows before they release any: a join keeps no row that its watermark has passed, so it would not find its match.
        """
        last = self.spark_log.last_commit()
        if last == NO_BATCH or self.held or not self._reads_channels_only():
            return False
        if not self.only_aggregates or not self.spark_log.has_state():
            return False
        entry = self.spark_log.offsets(last)
        if entry.watermark_ms < 0 or self.frame.sparkSession.conf.get(_SEVERAL_OPERATORS) != "true":
            return False  # Spark would compare late rows with 1970, or with the watermark of the batch itself
        lines = [
            bound.rest(line) for bound, line in zip(self.bounds, entry.sources, strict=True) if isinstance(bound, ChannelBound)
        ]
        rest = tuple(line for line in lines if line is not None)
        if len(rest) < len(lines):
            return False
        self.spark_log.plan(BatchId(last + 1), entry.with_sources(rest).with_watermark(END_OF_TIME_MS))
        return True

    def _reads_channels_only(self) -> bool:
        return not self.ended and all(isinstance(bound, ChannelBound) for bound in self.bounds)

    def release(self) -> None:
        """Moves the watermark to its value at the end of the round, and flushes everything that closes by that. Idempotent.

        Spark itself advances a watermark that is not held in one more batch without rows. If an attempt ends before that batch, the next
        attempt does not run it, because its query has nothing to read and is not started.
        """
        last = self.spark_log.last_commit()
        target = self._later_watermark(self.watermarks) if self.held else None
        if target is None and last != NO_BATCH and self.spark_log.has_state():
            target = self.spark_log.next_watermark_ms(last)
        if target is None or target <= self.spark_log.offsets(last).watermark_ms:
            return
        self.spark_log.plan(BatchId(last + 1), self.spark_log.offsets(last).with_watermark(target))
        self.run_planned()

    def plan_without_ended(self) -> None:
        """Plans a batch with the watermark of the inputs that have not ended. The next start of the query runs it.

        Spark itself would wait for the next row of each input. If a planned batch has staged nothing, it gets that watermark.
        """
        target = self._later_watermark({name: mark for name, mark in self.watermarks.items() if name not in self.ended})
        if target is None:
            return
        last, planned = self.spark_log.last_commit(), self.spark_log.last_offsets()
        entry = self.spark_log.offsets(planned).with_watermark(target)
        if planned == last:
            self.spark_log.plan(BatchId(last + 1), entry)
        elif self.log.read(planned) is None:
            self.spark_log.replan(planned, entry)

    def _later_watermark(self, marks: Mapping[InputName, InputWatermark]) -> int | None:
        """Returns the watermark of these inputs after the last batch, or None if it is not later than that of the stage."""
        last = self.spark_log.last_commit()
        staged = self.log.read(last) if last != NO_BATCH else None
        newest = {InputName(name): event_ms for name, event_ms in (staged.newest_event_ms if staged else {}).items()}
        target = release_watermark_ms(newest, {name: mark.delay_ms for name, mark in marks.items()})
        return None if target is None or target <= self.spark_log.next_watermark_ms(last) else target

    def logged(self, last: BatchId) -> dict[str, Any]:
        """Returns the facts in Spark's logs about the stage at the committed batch ``last``, as fields of its cut.

        Call it at the cut: Spark purges these logs.

        Raises:
            NotFoundError: Spark has purged the batch, a hundred batches later. Cut again.
        """
        drain_batches = self._drain_batches(last)
        return self.spark_log.facts(last) | {
            "drain_batches": drain_batches,
            "watermark_before_drain_ms": self._watermark_before(BatchId(last - drain_batches + 1)) if drain_batches else None,
        }

    def _is_drained(self) -> bool:
        last = self.spark_log.last_commit()
        return last != NO_BATCH and self.spark_log.offsets(last).watermark_ms >= END_OF_TIME_MS

    def _drain_batches(self, last: BatchId) -> int:
        batch, count = last, 0
        oldest = self.spark_log.first_offsets()
        while batch >= oldest and self.spark_log.offsets(batch).watermark_ms >= END_OF_TIME_MS:
            batch, count = BatchId(batch - 1), count + 1
        return count

    def _watermark_before(self, batch: BatchId) -> int | None:
        """Returns the watermark after all rows that a drain flushes, or None if Spark does not have it any more.

        Args:
            batch: The first batch of the drain. It may have rows.
        """
        if batch <= self.spark_log.first_offsets():
            return None
        before_ms, staged = self.spark_log.next_watermark_ms(BatchId(batch - 1)), self.log.read(batch)
        if self.held or staged is None:
            return before_ms
        newest = {InputName(name): event_ms for name, event_ms in staged.newest_event_ms.items()}
        after_ms = release_watermark_ms(newest, {name: mark.delay_ms for name, mark in self.watermarks.items()})
        return before_ms if after_ms is None else max(before_ms, after_ms)

    def _rows_expected(self) -> int | None:
        last = self.spark_log.last_commit()
        lines = (None,) * len(self.bounds) if last == NO_BATCH else self.spark_log.offsets(last).sources
        rows = [bound.rows_expected(line) for bound, line in zip(self.bounds, lines, strict=True)]
        return sum(count for count in rows if count is not None) if None not in rows else None

    def _consumed(self) -> bool:
        last = self.spark_log.last_commit()
        return last != NO_BATCH and all(bound.reached(line) for bound, _, line in self.ends_of(last))

    def _pending_trigger(self) -> dict[str, bool]:
        """Returns the trigger for a pending batch.

        With ``availableNow`` the query goes on after that batch. This needs a stream that stops at the stage's end. Without one the query
        would read beyond an end again, so it runs only the pending batch.
        """
        stops_at_ends = any(bound.available(line) is not None for bound, _, line in self.ends_of(self.spark_log.last_offsets()))
        return {"availableNow": True} if stops_at_ends else {"once": True}

    def _cut_back(self, batch: BatchId) -> None:
        """Plans a batch again that has read beyond the ends of the inputs. It then ends there."""
        lines = tuple(
            bound.cut_back(before, line) if bound.exceeded(before, line) else line for bound, before, line in self.ends_of(batch)
        )
        self.spark_log.replan(batch, self.spark_log.offsets(batch).with_sources(lines))

    def _check_read(self, lines: Sequence[str | None]) -> None:
        """Compares the rows read with the ends of the inputs, after Spark has found no more rows.

        Raises:
            InterruptedRunError: Rows before an end were not read.
            RejectedError: A source was replaced by another one.
        """
        for number, (stream, line) in enumerate(zip(self.sources, lines, strict=True)):
            if stream is not None:
                read = replace(stream.read, line=line or NO_OFFSET)
                stream.kind.check_batch(read, read.line, stream.losses, None, number)
        for argument, bound, line in zip(self.arguments, self.bounds, lines, strict=True):
            if argument not in self.ended and (left := bound.unread(line)):
                raise InterruptedRunError(
                    f"Stage '{self.stage.name}' has ended without reading all pinned rows of '{argument}'. It has left {left}.",
                    exists=f"Its batches up to {self.spark_log.last_commit()} are staged.",
                    safe="No row of this round is public.",
                    remedy="Restore the input of the round's beginning, then run again: it continues. "
                    + without_it([self.stage.inputs[argument].name]),
                    stage=self.stage.name,
                    input=argument,
                )

    def _plan_passed_over(self) -> bool:
        """Plans a batch of the rows before the ends in which Spark finds nothing new. Returns True if there are such rows."""
        last = self.spark_log.last_commit()
        if last == NO_BATCH:
            self._check_read((None,) * len(self.bounds))
            return False
        entry = self.spark_log.offsets(last)
        lines = tuple(bound.passed_over(line) or line for bound, line in zip(self.bounds, entry.sources, strict=True))
        if lines == entry.sources:
            self._check_read(entry.sources)
            return False
        watermark_ms = self.spark_log.next_watermark_ms(last)
        self.spark_log.plan(BatchId(last + 1), entry.with_sources(lines).with_watermark(watermark_ms))
        return True

    def _begin_before_epoch(self, batch: BatchId) -> None:
        """Plans a batch again with a watermark before all history.

        Raises:
            InvalidPipelineError: Rows that one operator releases when the watermark moves would be late for the next one.
        """
        if feeds_another_operator(self.frame):
            raise InvalidPipelineError(
                f"Stage '{self.stage.name}' has rows before 1970 and stateful operators one after the other: Spark would drop rows.",
                exists=f"Its batches up to {self.spark_log.last_commit()} are staged.",
                safe="No row of this round is public.",
                remedy=f"Put each window, join or timer into its own stage, or leave those rows out; then {BEGIN_ANEW}.",
                stage=self.stage.name,
            )
        self.spark_log.replan(batch, self.spark_log.offsets(batch).with_watermark(BEGINNING_OF_TIME_MS))

    def _is_before_epoch(self) -> bool:
        last = self.spark_log.last_offsets()
        return last != NO_BATCH and self.spark_log.offsets(last).watermark_ms < 0

    def run_planned(self) -> None:
        """Runs the planned batch.

        Raises:
            InterruptedRunError: The stage's query failed.
        """
        failure = self._run(once=True)
        if isinstance(failure, RefusedRowsError):
            self.replan(failure)
            failure = self._run(once=True)
        if failure is not None:
            raise failure

    def _run(self, **trigger: bool) -> ReplanError | None:
        """Runs the query until it ends by itself; see :meth:`run_query`."""
        self.cancellation.check()
        return self.run_query(trigger, lambda query: self.cancellation.check())

    def run_query(self, trigger: Mapping[str, Any], look: Callable[[StageQuery], object]) -> ReplanError | None:
        """Runs the stage's query, which goes on after its last batch.

        Args:
            trigger: Argument for Spark's ``DataStreamWriter.trigger``.
            look: Called repeatedly while the query runs. Returns True if it has stopped the query.

        Returns:
            The reason to plan the batch again in another way: see :meth:`replan`. Every other failure is raised.

        Raises:
            InvalidPipelineError: Spark cannot run the stage as a stream.
        """
        if self._is_before_epoch():  # if Spark computes a watermark per operator, it uses 1970 instead of earlier ones
            self.frame.sparkSession.conf.set(_SEVERAL_OPERATORS, "false")
        query = StageQuery(self, trigger)
        try:
            while not query.has_ended(_POLL_S):
                if look(query):
                    break
        except ReplanError as replanned:
            return replanned
        except BaseException:
            query.stop()
            raise
        return None

    def replan(self, failure: ReplanError) -> None:
        """Plans the rejected batch in another way. The next start of the query runs it."""
        batch = self.spark_log.last_offsets()
        if isinstance(failure, PastPinError):
            self._cut_back(batch)
        elif isinstance(failure, RefusedRowsError):
            self._leave_constraints(batch, failure)
        else:
            self._begin_before_epoch(batch)

    def _leave_constraints(self, batch: BatchId, failure: RefusedRowsError) -> None:
        """Lets the batch be staged without checking the table's constraints. The publication checks them and is blocked."""
        _LOG.warning(
            "stage %s: its table refuses rows of batch %d (%s). The stage stages them and goes on; their publication is blocked.",
            self.stage.name,
            batch,
            failure,
            extra={"stage": self.stage.name},
        )
        self.log.leave_constraints_to_publication()
