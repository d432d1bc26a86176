"""Executes a stop: follows the table of states, and reports each outcome to it."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_jobs.checkpoint.unfinished_requests import UnfinishedRequest, incomplete
from spark_jobs.control.request_table import RequestEvent, rejected_after
from spark_jobs.drain.flow import Action, Event, following
from spark_jobs.home.layout import answer_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest
from spark_jobs.protocol.documents import Manifest, StopStatus
from spark_jobs.protocol.errors import (
    ConflictError,
    FencedError,
    IncompleteError,
    InterruptedRunError,
    RunCancelledError,
    SparkJobFailedError,
    StreamPipelineError,
)
from spark_jobs.protocol.states import StopState
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints

_LOG = logging.getLogger(__name__)


class Stoppable(Protocol):
    """A running pipeline, as a stop uses it. See :class:`spark_jobs.runtime.running_pipeline.RunningPipeline`."""

    def quiesce(self, request: CheckpointRequest) -> None:
        """Holds all stages."""
        ...

    def flush(self, request: CheckpointRequest) -> None:
        """Drains all stages."""
        ...

    def checkpoint(self, request: CheckpointRequest) -> Manifest:
        """Takes the checkpoint of the stop."""
        ...

    def publish(self, manifest: Manifest, *, may_block: bool = False) -> None:
        """Publishes the rows of the checkpoint."""
        ...

    def run_on(self) -> None:
        """Lets the stages go on after a stop that has failed."""
        ...


class Stop:
    """One stop of a running pipeline.

    Args:
        asked: The request for the stop. If there are several, the first one counts.
        pipeline: Pipeline that is stopped.
        answers: Answers the requests.
        tell: Called with the progress of the stop.
    """

    def __init__(
        self,
        asked: Sequence[CheckpointRequest],
        pipeline: Stoppable,
        answers: RequestedCheckpoints,
        tell: Callable[[StopStatus], None],
    ) -> None:
        self._request = asked[0]
        self._others = rejected_after(RequestEvent.ANOTHER_STOP_WINS, asked[1:])
        self._asked = [each for each in asked if each not in self._others]
        self._pipeline, self._answers, self._tell = pipeline, answers, tell
        self._manifest: Manifest | None = None
        self._savepoint: str | None = None
        self._error: StreamPipelineError | None = None

    def run(self) -> Manifest | None:
        """Stops the pipeline.

        Returns:
            The checkpoint of the stop. None if the stop has failed and the pipeline runs on.

        Raises:
            InterruptedRunError: The stop or a stage has failed. The next attempt begins at the newest checkpoint.
            IncompleteError: The checkpoint exists. The next attempt rolls forward.
            FencedError: Another attempt is live.
        """
        self._reject_others()
        state, action = following(StopState.REQUESTED, Event.FIRST, drain=self._request.drain)
        while True:
            self._tell(StopStatus(request=self._request.request, state=state, drain=self._request.drain))
            if action is Action.END:
                return self._manifest
            if action is Action.RUN_ON:
                self._fail()
                self._pipeline.run_on()
                return None
            if action is Action.RESTART:
                self._fail()
                raise self._restart() from self._error
            if action is Action.LEAVE and self._manifest is not None:
                raise self._incomplete(self._manifest) from self._error
            state, action = following(state, self._event(action), drain=self._request.drain)

    def _event(self, action: Action) -> Event:
        try:
            self._do(action)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            if _ends_attempt(error) and action is not Action.FLUSH:
                raise  # the request stays, for the next attempt
            _LOG.warning("%s cannot %s: %s", self._request.request, action.value, error)
            self._error = error
            return Event.FAILED
        return Event.DONE

    def _do(self, action: Action) -> None:
        if action is Action.QUIESCE:
            self._answers.check(self._request)
            self._pipeline.quiesce(self._request)
        elif action is Action.FLUSH:
            self._pipeline.flush(self._request)
        elif action is Action.CHECKPOINT:
            self._manifest = self._pipeline.checkpoint(self._request)
        elif self._manifest is None:
            raise ValueError(f"{action.value} comes after the checkpoint")
        elif action is Action.SAVE:
            self._savepoint = self._answers.save(self._request, self._manifest)
        elif action is Action.PUBLISH:
            self._pipeline.publish(
                self._manifest, may_block=not self._request.drain
            )  # nothing after a drain would publish its rows
        else:
            self._answers.ended_with(self._asked, self._manifest)

    def _reject_others(self) -> None:
        for other in self._others:
            _LOG.info("%s: %s", other.request, following(StopState.REQUESTED, Event.SECOND, drain=other.drain).state.value)
            self._answers.reject_or_log(RequestEvent.ANOTHER_STOP_WINS, [other], lost_to(self._request))

    def _fail(self) -> None:
        if self._error is not None:
            self._answers.reject_or_log(RequestEvent.STOP_HAS_FAILED, [self._request], self._error)

    def _restart(self) -> InterruptedRunError:
        return InterruptedRunError(
            f"The drain for {self._request.request} has failed: {self._error.failed if self._error else 'for no known reason'}",
            exists="The newest checkpoint is valid. Rows that were flushed after it were not published.",
            safe="No row is lost, and all public rows are in a checkpoint.",
            remedy="Start the pipeline again: it continues from its newest checkpoint. Remove the cause before the next drain.",
            request=self._request.request,
        )

    def _incomplete(self, manifest: Manifest) -> IncompleteError:
        return incomplete(
            f"The stop for {self._request.request} did not finish: {self._error.failed if self._error else 'for no known reason'}",
            self._request.request,
            UnfinishedRequest(manifest.checkpoint, self._savepoint),
            "Start the pipeline again after you have removed the cause: it finishes the stop first.",
        )


def _ends_attempt(error: StreamPipelineError) -> bool:
    """Returns True if an error of a stage or an unknown outcome of the checkpoint ends the attempt. A failed packing job does not."""
    return isinstance(error, InterruptedRunError) and not isinstance(error, SparkJobFailedError)


def lost_to(winner: CheckpointRequest) -> ConflictError:
    """Returns the error for a request that came after another stop."""
    return ConflictError(
        f"{winner.request} already stops the pipeline.",
        exists=f"Its answer will be {answer_path(winner.request)} in the home.",
        safe="Nothing was done for this request.",
        remedy=f"Wait for {winner.request}; ask again with a new id if it fails.",
        winner=winner.request,
    )
