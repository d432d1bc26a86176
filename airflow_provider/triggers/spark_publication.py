"""The trigger that waits for a Spark that publishes."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.drivers.local_driver import is_at_work
from airflow_provider.triggers.patience import SETTLE_S, settled, wait_for
from airflow_provider.waits.shared_looks import Looking, Pace
from spark_jobs.protocol.errors import DeadlineExceededError

_PACE = Pace(shortest_s=1.0, longest_s=2.0)


class SparkPublicationTrigger(BaseTrigger):
    """Waits until a process that publishes has ended. Only looks; can be started again at any time.

    What the process has done is in the tables: the event says only which it was, with ``"home"``, ``"checkpoints"`` and ``"started"``, or
    has an error of :mod:`spark_jobs.protocol.errors` as ``"error"``. The process goes on when its task is killed: it makes public what
    somebody has asked for, once, and a next try waits for it.

    Args:
        home: URL of the home whose checkpoint it publishes.
        checkpoints: What the task publishes, by home: decided by its first look.
        output: The file that the process writes to.
        started: Whether the task has started it, or somebody else.
        deadline_at: Seconds since 1970; None: no deadline.
        timeout_s: The wait that ``deadline_at`` ends, for its error.
        settle_s: No event is sent before.
    """

    def __init__(
        self,
        *,
        home: str,
        checkpoints: Mapping[str, int],
        output: str,
        started: bool,
        deadline_at: float | None,
        timeout_s: float | None,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._event: dict[str, Any] = {"home": home, "checkpoints": dict(checkpoints), "started": started}
        self._arguments = self._event | {
            "output": output,
            "deadline_at": deadline_at,
            "timeout_s": timeout_s,
            "settle_s": settle_s,
        }
        self.home, self.output = home, Path(output)
        self.deadline_at, self.timeout_s, self.settle_s = deadline_at, timeout_s, settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event."""

        async def see(at_work: bool, left_s: float | None) -> bool:
            if at_work and left_s is not None and left_s <= 0:
                raise self._too_late()
            return not at_work

        looking = Looking(self.home, ("publication", self.output), lambda: is_at_work(self.output), _PACE)
        waiting = wait_for(looking, see, self.deadline_at, self.log)
        yield TriggerEvent(self._event | await settled(waiting, self.settle_s))  # type: ignore[no-untyped-call]

    def _too_late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The publication in {self.home} has not ended within {self.timeout_s:g} s.",
            exists=f"Its process is still at work; its output: {self.output}.",
            safe="It was not stopped. Each row is public once, or not yet.",
            remedy="A retry waits for the same process. Raise execution_timeout if the tables have grown.",
            home=self.home,
        )
