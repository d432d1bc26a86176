"""The trigger that waits for the answer to a request."""

import time
from collections.abc import AsyncIterator
from typing import Unpack

from airflow.triggers.base import TriggerEvent

from airflow_provider.triggers.patience import Waiting, WaitingTrigger
from airflow_provider.waits.requests import LookForAnswer, RequestLook, RequestWait
from airflow_provider.waits.waiting import ChangeLog
from spark_jobs.control.home import open_home
from spark_jobs.protocol.ids import RequestId


class RequestTrigger(WaitingTrigger):
    """Waits until a request is answered. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, the ``"request"``, and an error of :mod:`spark_jobs.protocol.errors` as ``"error"`` where the wait
    has failed. What the answer says is read by the task.

    Args:
        request: What was asked.
        restart_timeout_s: How long no driver may be at work.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitingTrigger`.
    """

    def __init__(
        self,
        *,
        request: str,
        restart_timeout_s: float,
        **waiting: Unpack[Waiting],
    ) -> None:
        super().__init__({"request": request, "restart_timeout_s": restart_timeout_s}, **waiting)
        self.request = RequestId(request)
        self.restart_timeout_s = restart_timeout_s

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, logs what the pipeline is doing, and sends one event."""
        changes = ChangeLog(self.log)
        waits = RequestWait(self.home, self.request, self.restart_timeout_s, self.timeout_s)

        async def see(look: RequestLook, left_s: float | None) -> bool:
            changes.see(look.doing)
            return waits.is_over(look, time.monotonic(), left_s)

        look = LookForAnswer(open_home(self.home), self.request)
        event = await self.event_of(("request", self.request), look, see, back=waits.began_anew)
        yield TriggerEvent({"home": self.home, "request": self.request} | event)  # type: ignore[no-untyped-call]
