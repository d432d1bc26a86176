"""The trigger that waits for a state of a pipeline."""

from collections.abc import AsyncIterator, Sequence
from operator import eq
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.pipeline_states import LookForState, StateLook, state_facts
from airflow_provider.shared_looks import Pace
from airflow_provider.triggers.patience import SETTLE_S, settled, wait_for
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.storage.open import open_files


class PipelineStateTrigger(BaseTrigger):
    """Waits until a pipeline is in one of some states. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, and what :func:`airflow_provider.pipeline_states.state_facts` says as ``"facts"``, or an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"``.

    Args:
        home: URL of the home, resolved and allowed by the task.
        states: The states, by their words.
        deadline_at: Seconds since 1970; None: no deadline.
        timeout_s: The wait that ``deadline_at`` ends, for its error.
        poll_interval_s: Between two looks at the home, while it changes.
        max_poll_interval_s: The same, once it has not changed for a while.
        settle_s: No event is sent before.
    """

    def __init__(
        self,
        *,
        home: str,
        states: Sequence[str],
        deadline_at: float | None,
        timeout_s: float | None,
        poll_interval_s: float,
        max_poll_interval_s: float,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments: dict[str, Any] = {
            "home": home,
            "states": list(states),
            "deadline_at": deadline_at,
            "timeout_s": timeout_s,
            "poll_interval_s": poll_interval_s,
            "max_poll_interval_s": max_poll_interval_s,
            "settle_s": settle_s,
        }
        self.home, self.states = home, frozenset(RunState(state) for state in states)
        self.deadline_at, self.timeout_s = deadline_at, timeout_s
        self.pace = Pace(poll_interval_s, max_poll_interval_s)
        self.settle_s = settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event."""
        files = open_files(self.home)
        found: dict[str, Any] = {}

        async def see(look: StateLook, left_s: float | None) -> bool:
            if look.is_one_of(self.states):
                found["facts"] = state_facts(files, look)
                return True
            if left_s is not None and left_s <= 0:
                raise self._too_late(look)
            return False

        waiting = wait_for(("state", self.home), LookForState(files), self.pace, eq, see, self.deadline_at, self.log)
        event = await settled(waiting, self.settle_s)
        yield TriggerEvent({"home": self.home} | event | found)  # type: ignore[no-untyped-call]

    def _too_late(self, look: StateLook) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The pipeline in {self.home} was not {' or '.join(sorted(self.states))} within {self.timeout_s or 0.0:g} s.",
            exists=f"It is {look.state.value}." if look.state else "Nothing has run there.",
            safe="Nothing was changed.",
            remedy="See what it does (spark-jobs status); raise timeout if it takes longer.",
            home=self.home,
        )
