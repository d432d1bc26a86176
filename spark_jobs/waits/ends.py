"""Cancels the attempts in a home, and waits for their ends."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_jobs.control.cancelling import Cancelled, cancel_newest, has_ended
from spark_jobs.control.status import read_status
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.progress import doing


class EndLook(NamedTuple):
    """The state of a home whose attempt was cancelled."""

    ended: bool
    activity: str | None
    """The activity of the attempt at work."""


@dataclass
class EndWait(HomeWait[EndLook, dict[str, Any]]):
    """Waits until the driver of a cancelled attempt has ended. Answers the request of a driver that is gone without an answer.

    Args:
        attempt: The attempt.
        owner: The owner number of the canceller.
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

    def too_late(self, look: EndLook, timeout_s: float | None) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The driver of attempt {self.attempt} in {self.files.url} has not ended within {timeout_s or 0.0:g} s of its cancel.",
            exists="The cancel stays: the driver ends as soon as it can.",
            remedy="Read its log, and cancel it again to wait longer. If the process does not react, end it on its host.",
            home=self.files.url,
            attempt=self.attempt,
        )

    def activity(self, look: EndLook) -> str | None:
        return look.activity


def end_all(
    files: Files, token: str, reason: str, wait: Callable[[EndWait], object], pause: Callable[[], object]
) -> Cancelled | None:
    """Cancels attempts, and waits for their ends, until no restart follows.

    Args:
        files: Files of the home.
        token: Token of the canceller, the same in every try.
        reason: Reason for the processes that wait for the attempt.
        wait: Waits for the end of a cancelled attempt.
        pause: Waits until a restart that was decided before the cancel is visible in the home.

    Returns:
        The last attempt that was cancelled; None if there was nothing to cancel. See :func:`spark_jobs.control.cancelling.cancel_newest`.
    """
    last, cancelled = None, cancel_newest(files, token, reason)
    while cancelled is not None and cancelled != last:
        wait(EndWait(files, cancelled.attempt, cancelled.owner))
        pause()
        last, cancelled = cancelled, cancel_newest(files, token, reason)
    return last
