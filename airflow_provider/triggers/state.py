"""The trigger that waits for a state of a pipeline."""

from collections.abc import Sequence
from typing import Any, Unpack

from airflow_provider.triggers.patience import WaitArguments, WaitingTrigger
from airflow_provider.waits.pipeline_states import LookForState, StateLook, state_facts
from airflow_provider.waits.threads import in_thread
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.storage.files import Files


class PipelineStateTrigger(WaitingTrigger):
    """Waits until a pipeline is in one of some states. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, and what :func:`airflow_provider.waits.pipeline_states.state_facts` says as ``"facts"``, or an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"``.

    Args:
        states: The states, by their words.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitArguments`.
    """

    def __init__(
        self,
        *,
        states: Sequence[str],
        **waiting: Unpack[WaitArguments],
    ) -> None:
        super().__init__({"states": list(states)}, **waiting)
        self.states = frozenset(RunState(state) for state in states)

    async def wait(self, files: Files) -> dict[str, Any]:
        """The state."""
        found: dict[str, Any] = {}

        async def see(look: StateLook, left_s: float | None) -> bool:
            if look.is_one_of(self.states):
                found["facts"] = await in_thread(self.home, state_facts, files, look)
                return True
            if left_s is not None and left_s <= 0:
                raise self._too_late(look)
            return False

        return await self.event_of("state", LookForState(files), see, lasting=False) | found

    def _too_late(self, look: StateLook) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The pipeline in {self.home} was not {' or '.join(sorted(self.states))} within {self.timeout_s or 0.0:g} s.",
            exists=f"It is {look.state.value}." if look.state else "Nothing has run there.",
            safe="Nothing was changed.",
            remedy="See what it does (spark-jobs status); raise timeout if it takes longer.",
            home=self.home,
        )
