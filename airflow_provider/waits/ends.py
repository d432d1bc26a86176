"""The wait for the end of a cancelled attempt."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider.waits.home_wait import HomeWait
from airflow_provider.waits.progress import doing
from spark_jobs.control.cancelling import Cancelled, has_ended, too_late
from spark_jobs.control.status import read_status
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber


class EndLook(NamedTuple):
    """The state of a home whose attempt was cancelled."""

    ended: bool
    activity: str | None
    """The activity of the attempt at work."""


@dataclass
class EndWait(HomeWait[EndLook]):
    """Waits until the driver of a cancelled attempt has ended. Answers the request of a driver that is gone without an answer.

    Args:
        attempt: The attempt.
        owner: The owner number with which the task has cancelled it.
    """

    kind = "end"

    attempt: int
    owner: int

    @property
    def cancelled(self) -> Cancelled:
        return Cancelled(AttemptNumber(self.attempt), OwnerNumber(self.owner))

    @property
    def key(self) -> Hashable:
        return self.kind, self.cancelled

    def look(self) -> EndLook:
        if has_ended(self.files, self.cancelled):
            return EndLook(True, None)
        status = read_status(self.files)
        return EndLook(False, doing(status) if status else None)

    def judge(self, look: EndLook, now_s: float) -> dict[str, Any] | None:
        return {} if look.ended else None

    def too_late(self, look: EndLook, timeout_s: float | None) -> StreamPipelineError:
        return too_late(self.files, self.cancelled, timeout_s)

    def activity(self, look: EndLook) -> str | None:
        return look.activity
