"""The trigger that waits for the end of a cancelled attempt."""

from collections.abc import AsyncIterator
from operator import eq
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.cancelling import Cancelled, has_ended, too_late
from airflow_provider.shared_looks import Pace
from airflow_provider.triggers.patience import SETTLE_S, settled, wait_for
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.storage.open import open_files


class EndTrigger(BaseTrigger):
    """Waits until the driver of a cancelled attempt has ended; answers for one that is gone without an answer.

    Can be started again at any time, in any triggerer that sees the home. The event has the ``"home"``, and an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"`` where the wait has failed.

    Args:
        home: URL of the home, resolved and allowed by the task.
        attempt: The attempt.
        owner: As whom the task has cancelled it.
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
        attempt: int,
        owner: int,
        deadline_at: float | None,
        timeout_s: float | None,
        poll_interval_s: float,
        max_poll_interval_s: float,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments: dict[str, Any] = {
            "home": home,
            "attempt": attempt,
            "owner": owner,
            "deadline_at": deadline_at,
            "timeout_s": timeout_s,
            "poll_interval_s": poll_interval_s,
            "max_poll_interval_s": max_poll_interval_s,
            "settle_s": settle_s,
        }
        self.home = home
        self.cancelled = Cancelled(AttemptNumber(attempt), OwnerNumber(owner))
        self.deadline_at, self.timeout_s = deadline_at, timeout_s
        self.pace = Pace(poll_interval_s, max_poll_interval_s)
        self.settle_s = settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event."""
        files = open_files(self.home)

        async def see(ended: bool, left_s: float | None) -> bool:
            if not ended and left_s is not None and left_s <= 0:
                raise too_late(files, self.cancelled, self.timeout_s)
            return ended

        key = ("end", self.home, self.cancelled)
        waiting = wait_for(key, lambda: has_ended(files, self.cancelled), self.pace, eq, see, self.deadline_at, self.log)
        event = await settled(waiting, self.settle_s)
        yield TriggerEvent({"home": self.home} | event)  # type: ignore[no-untyped-call]
