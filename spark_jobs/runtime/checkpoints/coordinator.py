"""Takes the checkpoints of a pipeline: one at a time, in one thread, while the stages run, and the last one when all have ended."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import (
    CheckpointDeclinedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    OutcomeUnknownError,
    RunCancelledError,
    SparkJobFailedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.runtime.checkpoints.cut import Alignment, Cut, Cuttable, Waiting, take_cut
from spark_jobs.runtime.checkpoints.due import Due
from spark_jobs.runtime.checkpoints.schedule import CheckpointSchedule
from spark_jobs.runtime.driver.cancellation import Cancellation

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.05
TRIED_AGAIN = (ConflictError, DeadlineExceededError, OutcomeUnknownError, SparkJobFailedError, StorageError)
"""What a try at a checkpoint may fail with while the pipeline runs on."""


class Requests(Protocol):
    """What people ask for, and how they are answered."""

    def open(self) -> Sequence[CheckpointRequest]:
        """What is not answered yet, the oldest first."""
        ...

    def completed(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Tells those who have asked of their checkpoint, and makes the savepoints that they have asked for."""
        ...

    def failed(self, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        """Tells those who have asked that the try has failed."""
        ...


class Coordinator:
    """Runs until all stages have ended, the pipeline is stopped or cancelled, or a stage gives up.

    Args:
        stages: In topological order.
        failures: Returns what a stage has given up with.
        take: Takes a checkpoint.
        publish: Publishes a checkpoint, and deletes what nothing needs any more.
        stop: Stops the pipeline for these requests, the first of which is for a stop. Returns None if the stop failed and the pipeline
            runs on.
        finish: Takes and publishes the final checkpoint.
        checkpointing: When checkpoints are due, and how long one may take. Savepoints are always aligned.
        cancellation: Of the attempt.
        requests: A checkpoint answers every request that is open when it is triggered, whatever has triggered it.
        has_ended: Tells whether every stage has staged its last row.
        is_idle: Tells whether a checkpoint would say what the last one says. Then none is taken, unless somebody asks for one.
        check_live: Raises if a later attempt is live. Called if no checkpoint is taken, and after a try that failed: the later attempt
            may have deleted the files that the try would have named.
    """

    def __init__(
        self,
        stages: Sequence[Cuttable],
        failures: Callable[[], BaseException | None],
        take: Callable[[Due], Manifest],
        publish: Callable[[Manifest], object],
        stop: Callable[[Sequence[CheckpointRequest]], Manifest | None],
        finish: Callable[[], Manifest],
        *,
        checkpointing: Checkpointing,
        cancellation: Cancellation,
        requests: Requests,
        has_ended: Callable[[], bool] = lambda: False,
        is_idle: Callable[[], bool] = lambda: False,
        check_live: Callable[[], object] = lambda: None,
    ) -> None:
        self._stages = stages
        self._failures = failures
        self._take = take
        self._publish = publish
        self._stop = stop
        self._finish = finish
        self._alignment, self._timeout_s = Alignment.declared(checkpointing), checkpointing.timeout_ms / 1000
        self._schedule = CheckpointSchedule.declared(checkpointing, time.monotonic())
        self._cancellation = cancellation
        self._requests = requests
        self._has_ended = has_ended
        self._is_idle = is_idle
        self._check_live = check_live

    def run(self) -> Manifest:
        """Takes checkpoints when they are due. Returns the last one: the final checkpoint, or the one of a stop.

        A stop that comes when all stages have ended gets the final checkpoint. A drain that comes then still flushes every stage.

        Raises:
            RunCancelledError: The attempt was cancelled.
            FencedError: A later attempt is live.
            InterruptedRunError: More tries than are tolerable have failed; those at a savepoint are not counted.
            IncompleteError: The pipeline was stopped, and a step after its checkpoint failed.
            StreamPipelineError: A stage has given up, the final checkpoint failed, or a checkpoint cannot be published.
        """
        while True:
            self.pause()
            asked = self._requests.open()
            now_s = time.monotonic()
            stops = [request for request in asked if request.wanted is Wanted.STOP]
            if self._has_ended() and not any(request.drain for request in stops):
                manifest = self._finish()
                self._requests.completed(asked, manifest)
                return manifest
            if stops:
                stopped = self._stop([*stops, *(request for request in asked if request.wanted is not Wanted.STOP)])
                if stopped is not None:
                    return stopped
            elif asked or (self._schedule.is_due(now_s) and not self._is_idle()):
                self._try(asked)
            elif self._schedule.is_due(now_s):
                self._check_live()
                self._schedule.skipped(now_s)

    def pause(self) -> None:
        """Lets a moment pass.

        Raises:
            RunCancelledError: The attempt was cancelled.
            StreamPipelineError: A stage has given up.
        """
        self._cancellation.check()
        failure = self._failures()
        if failure is not None:
            raise failure
        time.sleep(_LOOK_S)

    def deadline_s(self) -> float:
        """When a try that is triggered now has failed, on the monotonic clock."""
        return time.monotonic() + self._timeout_s

    def _try(self, asked: Sequence[CheckpointRequest]) -> None:
        triggered_s, deadline_s = time.monotonic(), self.deadline_s()
        waiting = Waiting(time.monotonic, self.pause)
        saving = any(request.wanted is Wanted.SAVEPOINT for request in asked)
        alignment = Alignment() if saving else self._alignment

        def find_cut() -> Cut:
            return take_cut(self._stages, alignment, deadline_s, waiting)

        kind = CheckpointKind.SAVEPOINT if saving else CheckpointKind.PERIODIC
        manifest = None
        try:
            manifest = self._take(Due(kind, find_cut, asked[0].request if asked else None, deadline_s, self.pause))
            self._publish(manifest)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            self._check_live()
            if not isinstance(error, TRIED_AGAIN):
                raise
            what = "a checkpoint" if manifest is None else f"the publication of checkpoint {manifest.checkpoint}"
            _LOG.warning("%s failed: %s", what, error)
            self._requests.failed(asked, error)
            counts = manifest is not None or not (saving or isinstance(error, CheckpointDeclinedError))
            if not self._schedule.failed(triggered_s, time.monotonic(), counts=counts):
                raise self._too_many(what, error) from error
        else:
            _LOG.info("checkpoint %d took %.2f s, with its publication", manifest.checkpoint, time.monotonic() - triggered_s)
            self._schedule.completed(triggered_s, time.monotonic())
            self._requests.completed(asked, manifest)

    def _too_many(self, what: str, last: StreamPipelineError) -> InterruptedRunError:
        return InterruptedRunError(
            f"Exceeded checkpoint tolerable failure threshold: {self._schedule.failures} checkpoints, or their publications, have failed "
            f"in a row, and {self._schedule.tolerable_failures} may. At last {what} failed: {last.failed}",
            exists="Every batch that was staged is kept, and so are the checkpoints that were completed.",
            safe="Nothing was published that is not in a complete checkpoint.",
            remedy="Mend the cause and run it again, or allow more with tolerable_failures.",
            failures=self._schedule.failures,
        )
