"""Lets a stage continue without a file that fails its batch each time. See docs/adr/0035-a-poison-file-is-passed-over.md.

The plan of the batch does not change. The batch runs as a probe without some of its files, and stages nothing, until the first file that
fails it is found. This file is recorded in the loss ledger. Then the batch runs without it.
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
from spark_jobs.protocol.losses import Loss, PassedOver
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
        f"It has passed over {spent}, and fails with another {loss.rows}: those of batch {loss.batch} of stage '{loss.input}' "
        f"in {loss.file}. It failed with: {loss.error}",
        exists="The loss ledger lists the rows that it has passed over before.",
        safe="These rows are staged and were not passed over.",
        remedy="Mend the stage's function, or let it tolerate more rows, and start the pipeline again.",
        stage=loss.stage,
        rows=loss.rows,
        passed_over=spent,
        tolerated=tolerance.rows,
    )


def is_unread(loss: PassedOver, run: StageRun, output: StageOutput) -> bool:
    """Returns True if a channel has the file, and no planned batch of the stage reads its batch or a later one."""
    read = Consumption(run.spark_log, run.bounds).consumed_by(run.spark_log.last_offsets()).get(output.producer, NO_BATCH)
    staged = output.log.read(loss.batch) if read < loss.batch else None
    return staged is not None and loss.file in map(_name, staged.adds)


def _name(add: Mapping[str, Any]) -> str:
    return str(add["path"]).rpartition("/")[2]


@dataclass
class PassingOver:
    """Searches, for one stage, for the files that fail its batch, and passes them over.

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
    """Whether the batch has failed so often that something of it is to be passed over."""
    _failed: tuple[BatchId, int] = field(default=(NO_BATCH, 0), init=False)
    """The batch that has failed last, and how often."""
    _error: str = field(default="", init=False)

    def tolerates(self, run: StageRun, error: Exception) -> bool:
        """Counts a failure. Returns whether the stage is to try the same batch again, or without something.

        It does not tolerate what another try may heal: nothing is passed over because a service is away. Nor what fails a batch that is
        staged already: consumers may have read it, so its rows are what they are.
        """
        if not isinstance(error, PermanentFailureError):
            return False
        try:
            batch = run.spark_log.last_offsets()
            is_planned = batch > run.spark_log.last_commit() and run.log.read(batch) is None
        except StreamPipelineError as unreadable:  # of which batch it is tells the next try
            _LOG.warning("which batch of stage %s has failed cannot be read: %s", run.stage.name, unreadable)
            return True
        if not is_planned:
            return False
        last, failures = self._failed
        self._failed = batch, failures + 1 if batch == last else 1
        self._error = last_line(error.failed).rstrip(".")
        self.is_due = self._failed[1] >= self.tolerance.after
        return True

    def pass_over(self, run: StageRun) -> StageRun:
        """Records the first file with which the planned batch fails; returns the stage as it goes on, without that file.

        Args:
            run: The stage; its query does not run.

        Raises:
            RestartsExhaustedError: The batch fails without any file, too, or more would be passed over than the stage tolerates.
            FencedError: Another attempt is live.
            TurnedAwayError: The stage is to stop.
            StreamPipelineError: A try has failed with something that another one may heal.
        """
        self.is_due = False
        run.gate.admit()
        found = self._first_that_fails(run, self._files(run))
        if found is not None:
            self.record(found)
        return self.build(run, ())

    def _files(self, run: StageRun) -> list[PassedOver]:
        """Returns the files that the planned batch reads, in the order of its streams, each as the loss that it would be."""
        batch, failures = self._failed
        return [
            PassedOver(
                input=InputName(bound.producer),
                stage=run.stage.name,
                batch=staged.batch,
                file=_name(add),
                rows=int(json.loads(add["stats"])["numRecords"]),
                size_bytes=int(add["size"]),
                error=self._error,
                tries=failures,
            )
            for bound, before, line in run.ends_of(batch)
            if isinstance(bound, ChannelBound)
            for staged in bound.read_between(before, line)
            for add in staged.adds
        ]

    def _first_that_fails(self, run: StageRun, files: Sequence[PassedOver]) -> PassedOver | None:
        """Returns the last file of the shortest beginning of the files with which the batch fails; None if it fails no more.

        Raises:
            RestartsExhaustedError: It fails without any of them.
        """
        if self._fails_without(run, files):
            raise RestartsExhaustedError(
                f"Batch {self._failed[0]} of stage '{run.stage.name}' fails at each try, also without the rows of its inputs, "
                f"so nothing can be passed over. It failed with: {self._error}",
                exists=f"The batches before {self._failed[0]} are staged.",
                safe="Nothing was passed over.",
                remedy="Mend the stage's function, its state or its static inputs, and start the pipeline again.",
                stage=run.stage.name,
                batch=self._failed[0],
            )
        passes, fails, has_failed = 0, len(files), False
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self._fails_without(run, files[middle:]):
                fails, has_failed = middle, True
            else:
                passes = middle
        return files[fails - 1] if has_failed or self._fails_without(run, ()) else None

    def _fails_without(self, run: StageRun, files: Sequence[PassedOver]) -> bool:
        """Returns whether the planned batch fails for good without some files. Nothing of it is staged."""
        if self.stopping.is_set():
            raise TurnedAwayError
        probe = replace(self.build(run, files), is_probe=True)

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
