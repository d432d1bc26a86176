"""Reads the state of a pipeline: the state in its newest heartbeat, corrected by whether a driver is at work."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.pipeline_look import look_at_pipeline
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait

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
        """Returns True if the pipeline is in one of these states.

        The heartbeat alone does not show this: it may say that an ended driver runs, or that a running driver has ended.
        """
        return self.state in states and self.at_work is not (self.state in ENDED)


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


@dataclass
class StateWait(HomeWait[StateLook, dict[str, Any]]):
    """Waits until a pipeline is in one of some states. Only reads.

    The event has the value of :func:`state_facts` as ``"facts"``.

    Args:
        states: The values of the states.
    """

    kind = "state"
    lasting = False

    states: list[str]

    @property
    def key(self) -> Hashable:
        return self.kind

    def look(self) -> StateLook:
        found = look_at_pipeline(self.files)
        if found.attempt is None:
            return StateLook(found.state, found.at_work, None, None)
        return StateLook(found.state, found.at_work, found.attempt.attempt, found.attempt.run)

    def reads_home(self, look: StateLook) -> bool:
        return look.is_one_of(frozenset(map(RunState, self.states)))

    def judge(self, look: StateLook, now_s: float) -> dict[str, Any] | None:
        return {"facts": state_facts(self.files, look)} if self.reads_home(look) else None

    def too_late(self, look: StateLook, timeout_s: float | None) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The pipeline in {self.files.url} was not {' or '.join(sorted(self.states))} within {timeout_s or 0.0:g} s.",
            exists=f"It is {look.state.value}." if look.state else "Nothing has run there.",
            safe="Nothing was changed.",
            remedy="See what it does (spark-jobs status); raise timeout if it takes longer.",
            home=self.files.url,
        )
