"""Stop-with-savepoint as one table: from a state and what has happened to the next state and what is to be done.

Pure. Whoever executes it does the :class:`Action`, and tells the :class:`Event` that it came to.

A stop that fails before its checkpoint exists leaves a pipeline that runs on: where nothing was flushed yet, as if nobody had asked; else
from the newest checkpoint, because what was flushed cannot be taken back. Once the checkpoint exists a stop only rolls forward, by
whichever attempt finds it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from spark_jobs.protocol.states import StopState


class Event(StrEnum):
    """What has happened to a stop."""

    FIRST = "first"
    """No other stop was asked for before."""
    SECOND = "second"
    """One was."""
    DONE = "done"
    """What was to be done is done."""
    FAILED = "failed"
    """It is not, and may have been begun."""


class Action(StrEnum):
    """What is to be done next."""

    QUIESCE = "quiesce"
    """Hold every stage once nothing is left for it, and keep it held."""
    FLUSH = "flush"
    """Move the watermark of one stage after the other to the end of time."""
    CHECKPOINT = "checkpoint"
    """Complete the checkpoint."""
    SAVE = "save"
    """Copy it into the savepoint."""
    PUBLISH = "publish"
    """Publish it."""
    ANSWER = "answer"
    """Tell whoever asked."""
    END = "end"
    """End the attempt, with success."""
    TURN_DOWN = "turn_down"
    """Tell whoever asked that it will not be."""
    RUN_ON = "run_on"
    """Tell whoever asked, and let go what is held."""
    RESTART = "restart"
    """Tell whoever asked, and end the attempt: the next one begins at the newest checkpoint."""
    LEAVE = "leave"
    """End the attempt without an answer: the next one rolls forward."""


class Transition(NamedTuple):
    """What follows."""

    state: StopState
    action: Action


_State, _Event, _Action = StopState, Event, Action

_ALWAYS: Mapping[tuple[StopState, Event], Transition] = {
    (_State.REQUESTED, _Event.FIRST): Transition(_State.ACKNOWLEDGED, _Action.QUIESCE),
    (_State.REQUESTED, _Event.SECOND): Transition(_State.REJECTED, _Action.TURN_DOWN),
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
    """What follows when ``event`` happens in ``state``.

    Args:
        state: Where the stop is.
        event: What has happened.
        drain: Whether everything is to be flushed first.

    Raises:
        ValueError: It cannot happen there.
    """
    table = {**_ALWAYS, **(_DRAIN if drain else _STOP)}
    if (state, event) not in table:
        raise ValueError(f"a {'drain' if drain else 'stop'} that is {state.value} cannot have the event {event.value}")
    return table[state, event]
