"""The wait for the answer to a request for a checkpoint, a savepoint, a stop or a publication."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_jobs.checkpoint.unfinished_requests import UnfinishedRequest, incomplete, unfinished_request
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.liveness import driver_at_work, publisher_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted, wanted_by
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.limits import LIMITS
from spark_jobs.waits.progress import doing


class RequestLook(NamedTuple):
    """The state of a home while a request is open."""

    answered: bool
    """True if the request has an answer, also if that is an error."""
    at_work: bool
    """True if a driver works in the home."""
    activity: str | None = None
    """The activity of the attempt at work."""
    unfinished: UnfinishedRequest | None = None
    """The unfinished result of the request, if no driver works on it."""
    runs_on: bool = False
    """True if the pipeline does not end after its answer: the answer is an error, or a later attempt has begun."""

    @property
    def is_over(self) -> bool:
        """True if neither an answer nor the end of the driver is to come."""
        return self.answered and (self.runs_on or not self.at_work)


@dataclass
class RequestWait(HomeWait[RequestLook, dict[str, Any]]):
    """Waits until a request is answered, and after a stop until its driver has ended, so that the next start finds the home free.

    A request for a publication is answered by a process that publishes, every other request by the driver of the pipeline.

    Only reads. The event has the ``"request"``; :func:`answer_to` reads its answer.

    Args:
        request: The request.
        restart_timeout_s: How long no driver or publisher may be at work before the request is answered. After that the wait fails.
        end_timeout_s: How long a driver may take to end after it has answered a stop without an error.
    """

    kind = "request"
    event_fields = ("request",)

    request: str
    restart_timeout_s: float
    end_timeout_s: float = LIMITS.driver_end_s

    def __post_init__(self) -> None:
        self._request = RequestId(self.request)
        self._wanted = wanted_by(self._request)
        self._was_open = False
        self._gone_since_s: float | None = None
        self._answered_since_s: float | None = None

    @property
    def key(self) -> Hashable:
        return self.kind, self.request

    def look(self) -> RequestLook:
        """Looks once.

        Raises:
            InterruptedRunError: The request and its answer were deleted.
        """
        # before the answer, so that the last answer of a process is seen
        at_work = publisher_at_work(self.files, self._request) if self._wanted is Wanted.PUBLISH else driver_at_work(self.files)
        answer = self._answer()
        if answer is not None:
            later = answer.attempt is not None and max(Attempts(self.files).numbers(), default=answer.attempt) > answer.attempt
            return RequestLook(True, at_work, runs_on=answer.error is not None or later)
        if self._wanted is Wanted.PUBLISH:
            return RequestLook(False, at_work)
        if not at_work:
            return RequestLook(False, False, unfinished=unfinished_request(self.files, self._request))
        status = read_status(self.files)
        return RequestLook(False, True, activity=doing(status) if status else None)

    def _answer(self) -> CheckpointResponse | None:
        """Returns the answer.

        An answer is kept for at least an hour, and looks are seconds apart. So an answer can only be deleted unseen before the first look,
        for example if the triggerer was down for hours. Only the first look checks for this.
        """
        requests = CheckpointRequests(self.files)
        answer = requests.answer_of(self._request)
        if answer is None and not self._was_open:
            self._was_open = requests.is_asked(self._request)
            answer = None if self._was_open else requests.answer_of(self._request)  # it may have been answered just now
            if not self._was_open and answer is None:
                raise InterruptedRunError(
                    f"{self._request} is not in {self.files.url} any more, and neither is its answer.",
                    exists="Old answers are deleted after many newer requests were answered, or a new home was made at the same place.",
                    safe="Nothing was changed.",
                    remedy="See spark-jobs status. A retry of this task makes a new request.",
                    home=self.files.url,
                    request=self._request,
                )
        return answer

    def judge(self, look: RequestLook, now_s: float) -> dict[str, Any] | None:
        """Returns an empty result after the answer; see :meth:`HomeWait.judge`.

        Raises:
            InterruptedRunError: No driver was at work for too long.
            IncompleteError: The same, but the requested checkpoint is complete.
        """
        if look.answered:
            if self._answered_since_s is None:
                self._answered_since_s = now_s
            driver_may_end = self._wanted is Wanted.STOP and now_s - self._answered_since_s < self.end_timeout_s
            return None if driver_may_end and not look.is_over else {}
        if look.at_work:
            self._gone_since_s = None
        elif self._gone_since_s is None:
            self._gone_since_s = now_s
        if self._gone_since_s is not None and now_s - self._gone_since_s >= self.restart_timeout_s:
            raise self.no_driver(look.unfinished)
        return None

    def too_late(self, look: RequestLook, timeout_s: float | None) -> StreamPipelineError | None:
        if look.answered:
            return None
        return DeadlineExceededError(
            f"{self._request} was not answered within {timeout_s or 0.0:g} s.",
            exists="The request stays, and is answered as soon as possible.",
            remedy="See spark-jobs status. A retry of this task waits for the same answer.",
            home=self.files.url,
            request=self._request,
        )

    def activity(self, look: RequestLook) -> str | None:
        return look.activity

    def home_is_back(self, now_s: float) -> None:
        """Restarts the allowed absence: while the home could not be read, the driver was not absent."""
        self._gone_since_s = None

    def no_driver(self, found: UnfinishedRequest | None) -> StreamPipelineError:
        """Returns the error for a request that no driver works on.

        Args:
            found: The unfinished result of the request.
        """
        if self._wanted is Wanted.PUBLISH:
            return InterruptedRunError(
                f"The process that publishes for {self._request} in {self.files.url} has ended without an answer.",
                safe="Each row is public once, or not yet.",
                remedy="A retry publishes the rest.",
                home=self.files.url,
                request=self._request,
            )
        failed = f"No driver has been at work in {self.files.url} for {self.restart_timeout_s:g} s, and {self._request} is not answered."
        if found is not None:
            return incomplete(
                failed,
                self._request,
                found,
                "Start the pipeline: it finishes this request first. A retry of this task waits for it.",
            )
        return InterruptedRunError(
            failed,
            exists="The request stays: the pipeline answers it as soon as it runs again.",
            safe="Nothing was lost.",
            remedy="Start the pipeline. A retry of this task waits for the same answer.",
            home=self.files.url,
            request=self._request,
        )


def answer_to(files: Files, request: RequestId) -> CheckpointResponse:
    """Returns the answer to a request after its wait.

    Raises:
        StreamPipelineError: The request was answered with this error.
        InterruptedRunError: The answer was deleted.
    """
    answer = CheckpointRequests(files).answer_of(request)
    if answer is None:
        raise InterruptedRunError(
            f"{request} in {files.url} no longer has an answer.",
            exists="Its file was deleted, or a new home was made at the same place.",
            safe="Nothing was changed.",
            remedy="See spark-jobs status. A retry looks at the home again.",
            home=files.url,
            request=request,
        )
    if answer.error is not None:
        raise reported_error(answer.error)
    return answer
