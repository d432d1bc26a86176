"""What tasks ask running pipelines for, and how long they wait for the answer. No clock of its own: an operator and a trigger share it."""

from hashlib import sha256
from typing import NamedTuple

from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, RejectedError
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.storage.files import Files

END_WAIT_S = 60.0
"""How long a driver may take to end once it has answered a stop."""


def ask_once(files: Files, wanted: Wanted, run: RunId, *, drain: bool = False, target: str | None = None) -> RequestId:
    """Asks for a task, durably, with an id that is the same in every try. Idempotent.

    A try that finds its request answered with an error asks anew: what has failed before may be mended, and one id is answered once.

    Args:
        files: The home.
        wanted: What for.
        run: Of the task instance.
        drain: With a stop: flush everything first.
        target: URL of the directory that the savepoint is to be in.

    Raises:
        RejectedError: Nobody would answer.
    """
    requests, name = CheckpointRequests(files), f"airflow-{sha256(run.encode()).hexdigest()[:24]}"
    number = 1
    while True:
        request = request_id(name if number == 1 else f"{name}-{number}", wanted)
        answer = requests.answer_of(request)
        if answer is None or answer.error is None:
            try:
                requests.ask(request, drain=drain, target=target)
            except RejectedError as error:
                raise _between_attempts(files, error) or error from None
            return request
        number += 1


def _between_attempts(files: Files, refused: RejectedError) -> InterruptedRunError | None:
    """The refusal of a pipeline that may start again soon: whoever supervises it has not given up, or a retry of theirs comes."""
    channel = Channel(files)
    live = channel.attempts.latest()
    answer = None if live is None else channel.response(live.request)
    if driver_at_work(files) or live is None or (answer is not None and answer.error is None):
        return None
    return InterruptedRunError(
        refused.failed,
        exists=f"Attempt {live.attempt} of run {live.run} did not finish.",
        safe=refused.safe,
        remedy="A retry of this task asks again; see that the pipeline starts.",
        home=files.url,
        attempt=live.attempt,
    )


class RequestLook(NamedTuple):
    """What a home shows while a request is open."""

    answered: bool
    at_work: bool


class LookForAnswer:
    """Looks once at a home.

    Args:
        files: The home.
        request: What was asked.
    """

    def __init__(self, files: Files, request: RequestId) -> None:
        self._files, self._request = files, request

    def __call__(self) -> RequestLook:
        at_work = driver_at_work(self._files)  # before the answer: what a driver has written last is seen
        return RequestLook(CheckpointRequests(self._files).answer_of(self._request) is not None, at_work)


class RequestWait:
    """Decides from looks how a wait goes on.

    Args:
        home: URL of the home.
        request: What was asked.
        restart_timeout_s: How long no driver may be at work.
        timeout_s: How long the wait may take in all, for its error.
    """

    def __init__(self, home: str, request: RequestId, restart_timeout_s: float, timeout_s: float | None) -> None:
        self._home, self._request = home, request
        self._restart_timeout_s, self._timeout_s = restart_timeout_s, timeout_s
        self._gone_since_s: float | None = None
        self._answered_since_s: float | None = None

    def is_over(self, look: RequestLook, now_s: float, left_s: float | None) -> bool:
        """Whether there is the answer; after a stop the driver is waited for, too, so that the next start finds the home free.

        Raises:
            InterruptedRunError: No driver was at work for too long.
            DeadlineExceededError: Time is up.
        """
        if look.answered:
            if self._answered_since_s is None:
                self._answered_since_s = now_s
            ends = self._request.startswith(Wanted.STOP.value)
            return not (ends and look.at_work and now_s - self._answered_since_s < END_WAIT_S)
        if look.at_work:
            self._gone_since_s = None
        elif self._gone_since_s is None:
            self._gone_since_s = now_s
        if self._gone_since_s is not None and now_s - self._gone_since_s >= self._restart_timeout_s:
            raise self._nobody()
        if left_s is not None and left_s <= 0:
            raise self._too_late()
        return False

    def _nobody(self) -> InterruptedRunError:
        return InterruptedRunError(
            f"No driver has been at work in {self._home} for {self._restart_timeout_s:g} s, and {self._request} is not answered.",
            exists="The request stays: the pipeline answers it as soon as it runs again.",
            safe="Nothing was lost.",
            remedy="Start the pipeline; a retry of this task waits on.",
            home=self._home,
            request=self._request,
        )

    def _too_late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{self._request} was not answered within {self._timeout_s or 0.0:g} s.",
            exists="The request stays: the pipeline answers it as soon as it can.",
            safe="Nothing was lost.",
            remedy="See spark-jobs status; a retry of this task waits on.",
            home=self._home,
            request=self._request,
        )
