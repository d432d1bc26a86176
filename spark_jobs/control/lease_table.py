"""The lease of an attempt as one table: from a state and an event to an action.

The module has no side effects. :class:`spark_jobs.control.lease.AttemptLease` reads the state from the home.

A process takes the lease of an attempt in order to wait for it and, if necessary, to end it. A later process may take the lease at any
time: the next try of a task, or a user who cancels. Only the newest owner's cancel counts. If a task has cancelled, its next try continues
the run. If a user has cancelled, only a user may start the run again.
"""

from collections.abc import Mapping
from enum import StrEnum


class LeaseState(StrEnum):
    """The state of a lease, as seen by the process that reads it."""

    FREE = "free"
    """No process has taken the lease."""
    HELD = "held"
    """The newest owner has not cancelled the attempt, and no earlier owner has."""
    RECLAIMED = "reclaimed"
    """The newest owner has not cancelled the attempt, but an earlier one has. The driver may have seen that cancel."""
    CANCELLED = "cancelled"
    """The newest owner is a task, and has cancelled the attempt."""
    CANCELLED_BY_USER = "cancelled_by_user"
    """The newest owner is a user's cancel, which has cancelled the attempt."""
    LOST = "lost"
    """Another process has taken the lease from this one."""
    LOST_AND_CANCELLED = "lost_and_cancelled"
    """Another process has taken the lease from this one, and has cancelled the attempt."""


class LeaseEvent(StrEnum):
    """An event in the life of an attempt."""

    ATTEMPT_CONTINUES = "attempt_continues"
    """The attempt is about to continue: its driver works on, or a start that is due follows the attempt."""
    RUN_CONTINUES = "run_continues"
    """The run of an ended attempt is about to continue without a user's request."""
    DRIVER_IS_GONE = "driver_is_gone"
    """The driver of the attempt has ended without an answer."""
    DRIVER_HAS_NOT_BEGUN = "driver_has_not_begun"
    """The driver of the attempt has not begun in time."""
    TASK_ENDS_DRIVER = "task_ends_driver"
    """A task is about to end the process of the attempt's driver."""
    WAIT_HAS_FAILED = "wait_has_failed"
    """A task's wait for the attempt has ended with an error."""
    CANCEL_WAITS = "cancel_waits"
    """A user's cancel waits for the end of the driver at work."""


class LeaseAction(StrEnum):
    """The action after an event."""

    CONTINUE = "continue"
    """Continue as if there were no lease."""
    END = "end"
    """End the attempt, or the run that was about to continue."""
    ANSWER = "answer"
    """Answer the start request in place of the driver, and cancel the attempt in case the driver still runs."""
    LEAVE = "leave"
    """Change nothing. Another process decides, or has decided."""
    RETAKE = "retake"
    """Begin the next attempt at once: an earlier owner has ended this one."""
    REPORT = "report"
    """Report an error: the driver works for another process."""


_State, _Event, _Action = LeaseState, LeaseEvent, LeaseAction

_TABLE: Mapping[LeaseEvent, Mapping[LeaseState, LeaseAction]] = {
    _Event.ATTEMPT_CONTINUES: {
        _State.FREE: _Action.CONTINUE,
        _State.HELD: _Action.CONTINUE,
        _State.RECLAIMED: _Action.CONTINUE,
        _State.CANCELLED: _Action.END,
        _State.CANCELLED_BY_USER: _Action.END,
    },
    _Event.RUN_CONTINUES: {
        _State.FREE: _Action.CONTINUE,
        _State.HELD: _Action.CONTINUE,
        _State.RECLAIMED: _Action.CONTINUE,
        _State.CANCELLED: _Action.CONTINUE,
        _State.CANCELLED_BY_USER: _Action.END,
    },
    _Event.DRIVER_IS_GONE: {
        _State.FREE: _Action.ANSWER,
        _State.HELD: _Action.ANSWER,
        _State.RECLAIMED: _Action.LEAVE,
        _State.CANCELLED: _Action.LEAVE,
        _State.CANCELLED_BY_USER: _Action.LEAVE,
        _State.LOST: _Action.LEAVE,
        _State.LOST_AND_CANCELLED: _Action.LEAVE,
    },
    _Event.DRIVER_HAS_NOT_BEGUN: {
        _State.FREE: _Action.ANSWER,
        _State.HELD: _Action.ANSWER,
        _State.RECLAIMED: _Action.ANSWER,
        _State.CANCELLED: _Action.ANSWER,
        _State.CANCELLED_BY_USER: _Action.ANSWER,
        _State.LOST: _Action.LEAVE,
        _State.LOST_AND_CANCELLED: _Action.LEAVE,
    },
    _Event.TASK_ENDS_DRIVER: {
        _State.FREE: _Action.LEAVE,
        _State.HELD: _Action.END,
        _State.RECLAIMED: _Action.END,
        _State.CANCELLED: _Action.END,
        _State.CANCELLED_BY_USER: _Action.END,
        _State.LOST: _Action.LEAVE,
        _State.LOST_AND_CANCELLED: _Action.LEAVE,
    },
    _Event.WAIT_HAS_FAILED: {
        _State.FREE: _Action.CONTINUE,
        _State.HELD: _Action.CONTINUE,
        _State.RECLAIMED: _Action.RETAKE,
        _State.CANCELLED: _Action.CONTINUE,
        _State.CANCELLED_BY_USER: _Action.CONTINUE,
        _State.LOST: _Action.CONTINUE,
        _State.LOST_AND_CANCELLED: _Action.END,
    },
    _Event.CANCEL_WAITS: {
        _State.FREE: _Action.CONTINUE,
        _State.HELD: _Action.CONTINUE,
        _State.RECLAIMED: _Action.CONTINUE,
        _State.CANCELLED: _Action.CONTINUE,
        _State.CANCELLED_BY_USER: _Action.CONTINUE,
        _State.LOST: _Action.REPORT,
        _State.LOST_AND_CANCELLED: _Action.REPORT,
    },
}


def action_after(event: LeaseEvent, state: LeaseState) -> LeaseAction:
    """Returns the action after ``event`` in ``state``.

    Raises:
        ValueError: The event cannot happen in this state.
    """
    found = _TABLE[event].get(state)
    if found is None:
        raise ValueError(f"{event.value} cannot happen while the lease is {state.value}")
    return found


def depends_on_earlier_owners(event: LeaseEvent) -> bool:
    """Returns True if an earlier owner's cancel changes the action after ``event``."""
    return action_after(event, _State.HELD) is not action_after(event, _State.RECLAIMED)
