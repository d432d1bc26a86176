"""Stop-with-savepoint as one table: from a state and an event to the next state and the next action.

The module has no side effects. The caller executes the :class:`Action` and reports the resulting :class:`Event`.

If a stop fails before its checkpoint exists, the pipeline runs on. If nothing was flushed yet, it runs on as before. Otherwise it runs on
from the newest checkpoint, because a flush cannot be undone. When the checkpoint exists, a stop only rolls forward, in any attempt that
finds it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from spark_jobs.protocol.states import StopState


class Event(StrEnum):
    """An event of a stop."""

    FIRST = "first"
    """There was no earlier stop."""
    SECOND = "second"
    """There was an earlier stop."""
    DONE = "done"
    """The action has succeeded."""
    FAILED = "failed"
    """The action has failed. It may be partly done."""


class Action(StrEnum):
    """The next action of a stop."""

    QUIESCE = "quiesce"
    """Hold every stage when it has no rows left, and keep it held."""
    FLUSH = "flush"
    """Advance the watermark of one stage after the other to the end of time."""
    CHECKPOINT = "checkpoint"
    """Complete the checkpoint."""
    SAVE = "save"
    """Copy the checkpoint into the savepoint."""
    PUBLISH = "publish"
    """Publish the checkpoint."""
    ANSWER = "answer"
    """Send the answer to the requester."""
    END = "end"
    """End the attempt, with success."""
    REJECT = "reject"
    """Answer the requester that the stop is refused."""
    RUN_ON = "run_on"
    """Answer the requester, and release the held stages."""
    RESTART = "restart"
    """Answer the requester, and end the attempt. The next one begins at the newest checkpoint."""
    LEAVE = "leave"
    """End the attempt without an answer. The next one rolls forward."""


class Transition(NamedTuple):
    """The next state and the next action."""

    state: StopState
    action: Action


_State, _Event, _Action = StopState, Event, Action

_ALWAYS: Mapping[tuple[StopState, Event], Transition] = {
    (_State.REQUESTED, _Event.FIRST): Transition(_State.ACKNOWLEDGED, _Action.QUIESCE),
    (_State.REQUESTED, _Event.SECOND): Transition(_State.REJECTED, _Action.REJECT),
    (_State.REQUESTED, _Event.FAILED): Transition(_State.FAILED, _Action.RUN_ON),
    (_State.ACKNOWLEDGED, _Event.FAILED): Transition(_State.FAILED, _Action.RUN_ON),
    (_State.CHECKPOINTED, _Event.DONE): Transition(_State.SAVED, _Action.PUBLISH),
    (_State.CHECKPOINTED, _Event.FAILED): Transition(_State.INCOMPLETE, _Action.LEAVE),
    (_State.SAVED, _Event.DONE): Transition(_State.PUBLISHED, _Action.ANSWER),
    (_State.SAVED, _Event.FAILED): Transition(_State.INCOMPLETE, _Action.LEAVE),
    (_State.PUBLISHED, _Event.DONE): Transition(_State.STOPPED, _Action.END),
    (_State.PUBLISHED, _Event.FAILED): Transition(_State.INCOMPLETE, _Action.LEAVE),
}
_STOP: Mapping[tuple[StopState, Event], Transition] = {
    (_State.ACKNOWLEDGED, _Event.DONE): Transition(_State.QUIESCED, _Action.CHECKPOINT),
    (_State.QUIESCED, _Event.DONE): Transition(_State.CHECKPOINTED, _Action.SAVE),
    (_State.QUIESCED, _Event.FAILED): Transition(_State.FAILED, _Action.RUN_ON),
}
_DRAIN: Mapping[tuple[StopState, Event], Transition] = {
    (_State.ACKNOWLEDGED, _Event.DONE): Transition(_State.QUIESCED, _Action.FLUSH),
    (_State.QUIESCED, _Event.DONE): Transition(_State.DRAINED, _Action.CHECKPOINT),
    (_State.QUIESCED, _Event.FAILED): Transition(_State.FAILED, _Action.RESTART),
    (_State.DRAINED, _Event.DONE): Transition(_State.CHECKPOINTED, _Action.SAVE),
    (_State.DRAINED, _Event.FAILED): Transition(_State.FAILED, _Action.RESTART),
}


def following(state: StopState, event: Event, *, drain: bool) -> Transition:
    """Returns the transition for ``event`` in ``state``.

    Args:
        state: State of the stop.
        event: The event.
        drain: True if everything is flushed first.

    Raises:
        ValueError: The event cannot happen in this state.
    """
    table = {**_ALWAYS, **(_DRAIN if drain else _STOP)}
    if (state, event) not in table:
        raise ValueError(f"a {'drain' if drain else 'stop'} that is {state.value} cannot have the event {event.value}")
    return table[state, event]
