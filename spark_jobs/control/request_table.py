"""The driver's side of open requests, as one table: from a state and an event to an action.

The module has no side effects. :class:`spark_jobs.runtime.checkpoints.requested_checkpoints.RequestedCheckpoints` executes the actions.

A request asks for a checkpoint, a savepoint or a stop. A request of any kind is answered with the checkpoint that covers it. A request that
no checkpoint covers waits for the next checkpoint, in this attempt or the next one, as long as such a checkpoint can follow.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted


class RequestState(StrEnum):
    """The state of an open request, at an event."""

    COVERED = "covered"
    """A checkpoint was triggered after the request, or the savepoint was begun with one. Only the checkpoint of a stop covers it."""
    CHECKPOINT = "checkpoint"
    """A request for a checkpoint that no checkpoint covers."""
    SAVEPOINT = "savepoint"
    """A request for a savepoint that no checkpoint covers."""
    STOP = "stop"
    """A request for a stop that no checkpoint covers."""
    DRAIN = "drain"
    """A request for a stop with a drain that no checkpoint covers."""


class RequestEvent(StrEnum):
    """An event in the life of a driver that concerns open requests."""

    ATTEMPT_BEGINS = "attempt_begins"
    """An attempt begins at a checkpoint. The attempt before may have died after it took that checkpoint and before it answered."""
    WORK_IS_LOST = "work_is_lost"
    """An attempt begins without the work directory of the attempt before, and reads rows again."""
    CHECKPOINT_IS_ABANDONED = "checkpoint_is_abandoned"
    """The last checkpoint of a stop or a run can never become public, and a start abandons it."""
    TRY_HAS_FAILED = "try_has_failed"
    """A try at a checkpoint for the requests has failed."""
    SAVEPOINT_HAS_FAILED = "savepoint_has_failed"
    """The savepoint could not be made. Another try may succeed."""
    SAVEPOINT_IS_IMPOSSIBLE = "savepoint_is_impossible"
    """The savepoint can never be made at its directory."""
    ANOTHER_STOP_WINS = "another_stop_wins"
    """The driver follows another request for a stop."""
    STOP_HAS_FAILED = "stop_has_failed"
    """The stop for the request has failed before its checkpoint was complete."""
    STOPPED = "stopped"
    """The checkpoint of a stop is complete and published."""
    RUN_ENDED = "run_ended"
    """The final checkpoint of a run is complete and published. It was not drained."""
    RUN_DRAINED = "run_drained"
    """The final checkpoint of a run is complete and published. It was drained."""
    LAST_ANSWERS_GIVEN = "last_answers_given"
    """The requests that the last checkpoint covers have been answered. The attempt does no further work."""


class RequestAction(StrEnum):
    """The action of the driver."""

    ANSWER = "answer"
    """Answer with the checkpoint."""
    REJECT = "reject"
    """Answer with an error."""
    LEAVE = "leave"
    """Leave it open, for the next checkpoint or the next attempt."""


_State, _Event, _Action = RequestState, RequestEvent, RequestAction

_TABLE: Mapping[RequestEvent, Mapping[RequestState, RequestAction]] = {
    _Event.ATTEMPT_BEGINS: {
        _State.COVERED: _Action.ANSWER,
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.LEAVE,
        _State.DRAIN: _Action.LEAVE,
    },
    _Event.WORK_IS_LOST: {
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.LEAVE,
        _State.DRAIN: _Action.REJECT,
    },
    _Event.CHECKPOINT_IS_ABANDONED: {
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.REJECT,
        _State.DRAIN: _Action.REJECT,
    },
    _Event.TRY_HAS_FAILED: {
        _State.CHECKPOINT: _Action.REJECT,
        _State.SAVEPOINT: _Action.REJECT,
    },
    _Event.SAVEPOINT_HAS_FAILED: {
        _State.SAVEPOINT: _Action.REJECT,
        _State.STOP: _Action.LEAVE,
        _State.DRAIN: _Action.LEAVE,
    },
    _Event.SAVEPOINT_IS_IMPOSSIBLE: {
        _State.SAVEPOINT: _Action.REJECT,
        _State.STOP: _Action.REJECT,
        _State.DRAIN: _Action.REJECT,
    },
    _Event.ANOTHER_STOP_WINS: {
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.REJECT,
        _State.DRAIN: _Action.REJECT,
    },
    _Event.STOP_HAS_FAILED: {
        _State.STOP: _Action.REJECT,
        _State.DRAIN: _Action.REJECT,
    },
    _Event.STOPPED: {
        _State.COVERED: _Action.ANSWER,
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.LEAVE,
        _State.DRAIN: _Action.LEAVE,
    },
    _Event.RUN_ENDED: {
        _State.COVERED: _Action.ANSWER,
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.ANSWER,
        _State.DRAIN: _Action.LEAVE,
    },
    _Event.RUN_DRAINED: {
        _State.COVERED: _Action.ANSWER,
        _State.CHECKPOINT: _Action.LEAVE,
        _State.SAVEPOINT: _Action.LEAVE,
        _State.STOP: _Action.ANSWER,
        _State.DRAIN: _Action.ANSWER,
    },
    _Event.LAST_ANSWERS_GIVEN: {
        _State.CHECKPOINT: _Action.REJECT,
        _State.SAVEPOINT: _Action.REJECT,
        _State.STOP: _Action.REJECT,
        _State.DRAIN: _Action.REJECT,
    },
}


def action_after(event: RequestEvent, state: RequestState) -> RequestAction:
    """Returns the action after ``event`` for a request in ``state``.

    Raises:
        ValueError: The event does not concern a request in this state.
    """
    found = _TABLE[event].get(state)
    if found is None:
        raise ValueError(f"{event.value} does not concern a request that is {state.value}")
    return found


def state_of(request: CheckpointRequest, *, is_covered: bool = False) -> RequestState:
    """Returns the state of an open request."""
    if is_covered:
        return RequestState.COVERED
    if request.wanted is Wanted.STOP:
        return RequestState.DRAIN if request.drain else RequestState.STOP
    return RequestState.CHECKPOINT if request.wanted is Wanted.CHECKPOINT else RequestState.SAVEPOINT


def answered_after(
    event: RequestEvent, requests: Sequence[CheckpointRequest], is_covered: Callable[[CheckpointRequest], bool]
) -> list[CheckpointRequest]:
    """Returns the requests that are answered with the checkpoint after ``event``."""
    return [each for each in requests if action_after(event, state_of(each, is_covered=is_covered(each))) is _Action.ANSWER]


def rejected_after(event: RequestEvent, requests: Sequence[CheckpointRequest]) -> list[CheckpointRequest]:
    """Returns the requests that are rejected after ``event``. No checkpoint covers any of ``requests``."""
    return [each for each in requests if action_after(event, state_of(each)) is _Action.REJECT]
