"""Takes the checkpoints of a pipeline: one at a time, in one thread, while the stages run, and the last one when all have ended."""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from spark_jobs.runtime.checkpoints.cut import Alignment, Cut, Due, Waiting, take_cut
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.checkpoints.schedule import CheckpointSchedule
from spark_jobs.runtime.driver.cancellation import Cancellation

if TYPE_CHECKING:
    from spark_jobs.runtime.running_pipeline import RunningPipeline

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.05
TRIED_AGAIN = (ConflictError, DeadlineExceededError, OutcomeUnknownError, SparkJobFailedError, StorageError)
"""The errors of a try at a checkpoint with which the pipeline runs on."""


class Coordinator:
    """Runs until all stages have ended, the pipeline is stopped or cancelled, or a stage gives up.

    Args:
        pipeline: What checkpoints are taken of.
        checkpointing: When checkpoints are due, and how long one may take. Savepoints are always aligned.
        cancellation: Of the attempt.
        requests: A checkpoint answers every request that is open when it is triggered, whatever has triggered it.
    """

    def __init__(
        self,
        pipeline: "RunningPipeline",
        checkpointing: Checkpointing,
        cancellation: Cancellation,
        requests: RequestedCheckpoints,
    ) -> None:
        self._pipeline = pipeline
        self._alignment, self._timeout_s = Alignment.declared(checkpointing), checkpointing.timeout_ms / 1000
        self._schedule = CheckpointSchedule.declared(checkpointing, time.monotonic())
        self._cancellation = cancellation
        self._requests = requests

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
            if self._pipeline.has_ended() and not any(request.drain for request in stops):
                manifest = self._pipeline.finish()
                self._requests.completed(asked, manifest)
                return manifest
            if stops:
                stopped = self._pipeline.stop([*stops, *(request for request in asked if request.wanted is not Wanted.STOP)])
                if stopped is not None:
                    return stopped
            elif asked or (self._schedule.is_due(now_s) and not self._pipeline.is_idle()):
                self._try(asked)
            elif self._schedule.is_due(now_s):
                self._pipeline.check_live()
                self._schedule.skipped(now_s)

    def pause(self) -> None:
        """Lets a moment pass.

        Raises:
            RunCancelledError: The attempt was cancelled.
            StreamPipelineError: A stage has given up.
        """
        self._cancellation.check()
        failure = self._pipeline.failure()
        if failure is not None:
            raise failure
        time.sleep(_LOOK_S)

    def deadline_s(self) -> float:
        """Returns when a try that is triggered now has failed, on the monotonic clock."""
        return time.monotonic() + self._timeout_s

    def _try(self, asked: Sequence[CheckpointRequest]) -> None:
        triggered_s, deadline_s = time.monotonic(), self.deadline_s()
        saving = any(request.wanted is Wanted.SAVEPOINT for request in asked)
        alignment = Alignment() if saving else self._alignment

        def find_cut() -> Cut:
            return take_cut(self._pipeline.stages, alignment, Waiting(deadline_s, time.monotonic, self.pause))

        kind = CheckpointKind.SAVEPOINT if saving else CheckpointKind.PERIODIC
        manifest = None
        try:
            manifest = self._pipeline.complete(Due(kind, find_cut, asked[0].request if asked else None, deadline_s, self.pause))
            self._pipeline.publish(manifest)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            self._pipeline.check_live()
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
