"""The trigger that waits for the answer to a request."""

import time
from collections.abc import AsyncIterator
from operator import eq
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.requests import LookForAnswer, RequestLook, RequestWait
from airflow_provider.shared_looks import Pace
from airflow_provider.triggers.patience import SETTLE_S, settled, wait_for
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.open import open_files


class RequestTrigger(BaseTrigger):
    """Waits until a request is answered. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, the ``"request"``, and an error of :mod:`spark_jobs.protocol.errors` as ``"error"`` where the wait
    has failed. What the answer says is read by the task.

    Args:
        home: URL of the home, resolved and allowed by the task.
        request: What was asked.
        restart_timeout_s: How long no driver may be at work.
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
        request: str,
        restart_timeout_s: float,
        deadline_at: float | None,
        timeout_s: float | None,
        poll_interval_s: float,
        max_poll_interval_s: float,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments: dict[str, Any] = {
            "home": home,
            "request": request,
            "restart_timeout_s": restart_timeout_s,
            "deadline_at": deadline_at,
            "timeout_s": timeout_s,
            "poll_interval_s": poll_interval_s,
            "max_poll_interval_s": max_poll_interval_s,
            "settle_s": settle_s,
        }
        self.home, self.request = home, RequestId(request)
        self.restart_timeout_s = restart_timeout_s
        self.deadline_at, self.timeout_s = deadline_at, timeout_s
        self.pace = Pace(poll_interval_s, max_poll_interval_s)
        self.settle_s = settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event."""
        waits = RequestWait(self.home, self.request, self.restart_timeout_s, self.timeout_s)

        async def see(look: RequestLook, left_s: float | None) -> bool:
            return waits.is_over(look, time.monotonic(), left_s)

        look = LookForAnswer(open_files(self.home), self.request)
        waiting = wait_for(("request", self.home, self.request), look, self.pace, eq, see, self.deadline_at, self.log)
        event = await settled(waiting, self.settle_s)
        yield TriggerEvent({"home": self.home, "request": self.request} | event)  # type: ignore[no-untyped-call]
