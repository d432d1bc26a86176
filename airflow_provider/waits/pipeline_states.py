"""Reads the state of a pipeline: the state in its newest heartbeat, corrected by whether a driver is at work."""

from typing import Any, NamedTuple

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.pipeline_look import look_at_pipeline
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId
from spark_jobs.storage.files import Files

ENDED = frozenset({RunState.DONE, RunState.FAILED})
"""The states in which no driver is at work."""


class StateLook(NamedTuple):
    """The state of a pipeline in a home."""

    state: RunState | None
    """None: nothing has run in the home."""
    at_work: bool
    attempt: AttemptNumber | None
    run: RunId | None

    def is_one_of(self, states: frozenset[RunState]) -> bool:
        """Returns whether the pipeline is in one of these states. A heartbeat may outlive its driver, or announce its end before it."""
        return self.state in states and self.at_work is not (self.state in ENDED)


class LookForState:
    """Looks once at a home; writes nothing.

    Args:
        files: The home.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def __call__(self) -> StateLook:
        found = look_at_pipeline(self._files)
        if found.attempt is None:
            return StateLook(found.state, found.at_work, None, None)
        return StateLook(found.state, found.at_work, found.attempt.attempt, found.attempt.run)


def state_facts(files: Files, look: StateLook) -> dict[str, Any]:
    """Returns the state as XCom: ``home``, ``state``, ``run``, ``attempt``, and the newest ``checkpoint`` or None."""
    return {
        "home": files.url,
        "state": look.state and look.state.value,
        "run": look.run,
        "attempt": look.attempt,
        "checkpoint": newest_checkpoint(files),
    }


def newest_checkpoint(files: Files) -> CheckpointId | None:
    """Returns the number of the newest complete checkpoint of a home; None if there is none."""
    head = CheckpointStore(files).head()
    return None if head is None else head.checkpoint
