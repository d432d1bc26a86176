"""Lets a stage continue without rows that fail its batch each time. See docs/adr/0035-a-poison-file-is-passed-over.md.

The plan of the batch does not change. The batch runs as a probe without some of its units, and stages nothing, until the first unit that
fails it is found. A unit is a file, or an offset of Kafka. It is recorded in the loss ledger. Then the batch runs without it.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.api.tolerance import Tolerance
from spark_jobs.protocol.errors import PermanentFailureError, RestartsExhaustedError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.protocol.losses import Loss, PassedOver, Records, StagedFile, Unit, pieces, place_in_words, some_pieces
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.inputs.source_kind import SourceStream
from spark_jobs.runtime.spark.session import QuietQueries
from spark_jobs.runtime.spark.spark_errors import last_line
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.channel_bound import ChannelBound, Consumption
from spark_jobs.runtime.stages.gate import TurnedAwayError
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.stages.stage_query import StageQuery
from spark_jobs.runtime.stages.staging import ProbePassedError

_LOG = logging.getLogger(__name__)


def beyond_tolerance(tolerance: Tolerance, spent: int, loss: PassedOver) -> RestartsExhaustedError:
    """Returns the error for a stage that would exceed its tolerance.

    Args:
        tolerance: Tolerance of the stage.
        spent: Rows that the stage has passed over within the interval.
        loss: The next loss.
    """
    return RestartsExhaustedError(
        f"Stage '{loss.stage}' tolerates the loss of {tolerance.rows} rows in {tolerance.interval_ms / 1000:g} s. "
        f"It has passed over {spent}, and fails with another {loss.rows}: those of {place_in_words(loss)}. It failed with: {loss.error}",
        exists="The loss ledger lists the rows that it has passed over before.",
        safe="These rows were not passed over.",
        remedy="Correct the stage's function, or let it tolerate more rows, and start the pipeline again.",
        stage=loss.stage,
        rows=loss.rows,
        passed_over=spent,
        tolerated=tolerance.rows,
    )


def has_read(loss: PassedOver, run: StageRun, output: StageOutput | None, upto: BatchId | None = None) -> bool:
    """Returns True if a planned batch of a stage has read a loss, or anything after it in its stream.

    Args:
        loss: The loss.
        run: The stage.
        output: The output of the stage that has staged the file. None for a source.
        upto: The last batch that counts. None: every planned batch counts.
    """
    last = run.spark_log.last_offsets() if upto is None else upto
    if isinstance(loss.unit, StagedFile):
        read = Consumption(run.spark_log, run.bounds).consumed_by(last)
        return output is not None and read.get(output.producer, NO_BATCH) >= loss.unit.batch
    streams = [stream for stream in run.read_up_to(last) if stream.read.name == loss.input]
    return any(stream.kind.has_read(stream.read, loss.unit) for stream in streams)


def is_unread(loss: PassedOver, run: StageRun, output: StageOutput | None) -> bool:
    """Returns True if a stage is still to read a loss: no planned batch has, and the channel has the file of a staged batch."""
    if has_read(loss, run, output):
        return False
    if not isinstance(loss.unit, StagedFile):
        return True
    staged = output.log.read(loss.unit.batch) if output is not None else None
    return staged is not None and loss.unit.file in map(_name, staged.adds)


def _name(add: Mapping[str, Any]) -> str:
    return str(add["path"]).rpartition("/")[2]


@dataclass(frozen=True)
class Planned:
    """A unit that the planned batch reads."""

    input: InputName
    unit: Unit
    rows: int | None
    """The number of rows. None: they are counted only if the unit is passed over."""
    source: SourceStream | None = None
    """The stream, if it belongs to a source."""


def some_of(planned: Sequence[Planned], begin: int, end: int) -> list[Planned]:
    """Returns the pieces of units from ``begin`` up to ``end``."""
    found, before = [], 0
    for each in planned:
        count = pieces(each.unit)
        first, last = max(begin - before, 0), min(end - before, count)
        if first < last:
            rows = last - first if isinstance(each.unit, Records) else each.rows
            found.append(replace(each, unit=some_pieces(each.unit, first, last), rows=rows))
        before += count
    return found


@dataclass
class PassingOver:
    """Searches, for one stage, for the units that fail its batch, and passes them over.

    Args:
        tolerance: Tolerance of the stage.
        build: Builds the stage without the given losses and the recorded ones.
        record: Records a loss durably.
        stopping: Set when all stages must stop.
    """

    tolerance: Tolerance
    build: Callable[[StageRun, Sequence[Loss]], StageRun]
    record: Callable[[PassedOver], object]
    stopping: threading.Event
    is_due: bool = field(default=False, init=False)
    """True if the batch has failed so often that a unit of it has to be passed over."""
    _failed: tuple[BatchId, int] = field(default=(NO_BATCH, 0), init=False)
    """The batch that has failed last, and how often."""
    _error: str = field(default="", init=False)

    def tolerates(self, run: StageRun, error: Exception) -> bool:
        """Counts a failure. Returns True if the stage tries the batch again, with or without all units.

        An error that another try may heal, such as an unavailable service, is not tolerated. A failure of a batch that is already staged
        is not tolerated either, because consumers may have read its rows.
        """
        if not isinstance(error, PermanentFailureError):
            return False
        try:
            batch = run.spark_log.last_offsets()
            is_planned = batch > run.spark_log.last_commit() and run.log.read(batch) is None
        except StreamPipelineError as unreadable:  # the next try finds out which batch has failed
            _LOG.warning("the failed batch of stage %s cannot be read: %s", run.stage.name, unreadable)
            return True
        if not is_planned:
            return False
        last, failures = self._failed
        self._failed = batch, failures + 1 if batch == last else 1
        self._error = last_line(error.failed).rstrip(".")
        self.is_due = self._failed[1] >= self.tolerance.after
        return True

    def pass_over(self, run: StageRun) -> StageRun:
        """Records the first unit with which the planned batch fails. Returns the stage without that unit.

        Args:
            run: The stage; its query does not run.

        Raises:
            RestartsExhaustedError: The batch also fails without any row, or the stage tolerates no further loss.
            FencedError: Another attempt is live.
            TurnedAwayError: The stage must stop.
            StreamPipelineError: A try has failed with an error that another try may heal.
        """
        self.is_due = False
        run.gate.admit()
        found = self._first_that_fails(run, self._planned(run))
        if found is not None:
            self.record(self._loss(run, found, counted=True))
        return self.build(run, ())

    def _planned(self, run: StageRun) -> list[Planned]:
        """Returns the units that the planned batch reads, in the order of its streams."""
        found = []
        for number, (bound, before, line) in enumerate(run.ends_of(self._failed[0])):
            stream = run.sources[number] if run.sources else None
            if isinstance(bound, ChannelBound):
                found += [
                    Planned(
                        InputName(bound.producer),
                        StagedFile(
                            batch=staged.batch,
                            file=_name(add),
                            size_bytes=int(add["size"]),
                            path=add["path"],
                            partition_values=add.get("partitionValues") or {},
                        ),
                        int(json.loads(add["stats"])["numRecords"]),
                    )
                    for staged in bound.read_between(before, line)
                    for add in staged.adds
                ]
            elif stream is not None:
                read = replace(stream.read, line=before or NO_OFFSET)
                found += [Planned(read.name, unit, rows, stream) for unit, rows in stream.kind.units(read, line)]
        return found

    def _loss(self, run: StageRun, planned: Planned, *, counted: bool = False) -> PassedOver:
        """Returns the loss of a unit.

        Args:
            run: The stage.
            planned: The unit.
            counted: True if the rows must be known.
        """
        rows, source = planned.rows, planned.source
        if rows is None and counted and source is not None:
            rows = source.kind.rows_of(run.frame.sparkSession, source.read.leaf, planned.unit).count()
        return PassedOver(
            input=planned.input,
            stage=run.stage.name,
            unit=planned.unit,
            rows=rows or 0,
            error=self._error,
            tries=self._failed[1],
        )

    def _first_that_fails(self, run: StageRun, planned: Sequence[Planned]) -> Planned | None:
        """Returns the first piece of the units with which the batch fails; None if the batch no longer fails.

        Raises:
            RestartsExhaustedError: The batch fails without any unit.
        """
        if self._fails_without(run, planned):
            raise RestartsExhaustedError(
                f"Batch {self._failed[0]} of stage '{run.stage.name}' fails at each try, also without the rows of its inputs, "
                f"so nothing can be passed over. It failed with: {self._error}",
                exists=f"The batches before {self._failed[0]} are staged.",
                safe="Nothing was passed over.",
                remedy="Correct the stage's function, its state or its static inputs, and start the pipeline again.",
                stage=run.stage.name,
                batch=self._failed[0],
            )
        count = sum(pieces(each.unit) for each in planned)
        passes, fails, has_failed = 0, count, False
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self._fails_without(run, some_of(planned, middle, count)):
                fails, has_failed = middle, True
            else:
                passes = middle
        return some_of(planned, fails - 1, fails)[0] if has_failed or self._fails_without(run, ()) else None

    def _fails_without(self, run: StageRun, planned: Sequence[Planned]) -> bool:
        """Returns True if the planned batch fails permanently without some units. No row of it is staged."""
        if self.stopping.is_set():
            raise TurnedAwayError
        probe = replace(self.build(run, [self._loss(run, each) for each in planned]), is_probe=True)

        def look(query: StageQuery) -> bool:
            run.cancellation.check()
            if self.stopping.is_set():
                query.stop()
            return self.stopping.is_set()

        session: SparkSession = probe.frame.sparkSession
        with QuietQueries.during(session):
            try:
                probe.run_query({"once": True}, look)
            except ProbePassedError:
                return False
            except PermanentFailureError:
                return True
        raise TurnedAwayError  # the query was stopped
