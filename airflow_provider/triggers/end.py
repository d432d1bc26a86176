"""The trigger that waits for the end of a cancelled attempt."""

from typing import Any, Unpack

from airflow_provider.triggers.patience import WaitArguments, WaitingTrigger
from airflow_provider.waits.looking import EndLook, look_for_end
from airflow_provider.waits.progress import StateChangeLogger
from spark_jobs.control.cancelling import Cancelled, too_late
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.storage.files import Files


class EndTrigger(WaitingTrigger):
    """Waits until the driver of a cancelled attempt has ended; answers for one that is gone without an answer.

    Can be started again at any time, in any triggerer that sees the home. The event has the ``"home"``, and an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"`` where the wait has failed.

    Args:
        attempt: The attempt.
        owner: As whom the task has cancelled it.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitArguments`.
    """

    def __init__(
        self,
        *,
        attempt: int,
        owner: int,
        **waiting: Unpack[WaitArguments],
    ) -> None:
        super().__init__({"attempt": attempt, "owner": owner}, **waiting)
        self.cancelled = Cancelled(AttemptNumber(attempt), OwnerNumber(owner))

    async def wait(self, files: Files) -> dict[str, Any]:
        """Nothing more; logs what the pipeline is doing meanwhile."""
        changes = StateChangeLogger(self.log)

        async def see(look: EndLook, left_s: float | None) -> bool:
            changes.see(look.doing)
            if not look.ended and left_s is not None and left_s <= 0:
                raise too_late(files, self.cancelled, self.timeout_s)
            return look.ended

        return await self.event_of(("end", self.cancelled), lambda: look_for_end(files, self.cancelled), see)
