"""The trigger that waits for the answer to a request."""

import time
from typing import Any, Unpack

from airflow_provider.triggers.patience import WaitArguments, WaitingTrigger
from airflow_provider.waits.progress import StateChangeLogger
from airflow_provider.waits.requests import LookForAnswer, RequestLook, RequestWait
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import Files


class RequestTrigger(WaitingTrigger):
    """Waits until a request is answered. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, the ``"request"``, and an error of :mod:`spark_jobs.protocol.errors` as ``"error"`` where the wait
    has failed. What the answer says is read by the task.

    Args:
        request: What was asked.
        restart_timeout_s: How long no driver may be at work.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitArguments`.
    """

    def __init__(
        self,
        *,
        request: str,
        restart_timeout_s: float,
        **waiting: Unpack[WaitArguments],
    ) -> None:
        super().__init__({"request": request, "restart_timeout_s": restart_timeout_s}, **waiting)
        self.request = RequestId(request)
        self.restart_timeout_s = restart_timeout_s

    def event_fields(self) -> dict[str, Any]:
        """Which request."""
        return {"request": self.request}

    async def wait(self, files: Files) -> dict[str, Any]:
        """Nothing more; logs what the pipeline is doing meanwhile."""
        changes = StateChangeLogger(self.log)
        waits = RequestWait(self.home, self.request, self.restart_timeout_s, self.timeout_s)

        async def see(look: RequestLook, left_s: float | None) -> bool:
            changes.see(look.doing)
            return waits.is_over(look, time.monotonic(), left_s)

        look = LookForAnswer(files, self.request)
        return await self.event_of(("request", self.request), look, see, back=waits.began_anew)
