"""What tasks ask running pipelines for, and how long they wait for the answer. No clock of its own: an operator and a trigger share it."""

from hashlib import sha256
from typing import NamedTuple

from airflow_provider.waits.progress import doing
from spark_jobs.checkpoint.cut_short import CutShort, cut_short, incomplete
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.storage.files import Files

END_WAIT_S = 60.0
"""How long a driver may take to end once it has answered a stop without an error."""


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
        InterruptedRunError: Nobody is at work now, but somebody may be soon.
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
                if error.evidence.get("at_work") is not False:
                    raise
                if Channel(files).attempts.latest() is not None and driver_at_work(files):
                    continue  # a driver has begun since nobody was found at work
                raise _between_attempts(files, error) or error from None
            return request
        number += 1


def _between_attempts(files: Files, refused: RejectedError) -> InterruptedRunError | None:
    """The refusal of a pipeline that may start again soon: whoever supervises it has not given up, or a retry of theirs comes."""
    channel = Channel(files)
    live = channel.attempts.latest()
    if live is None:
        exists = "A driver is on its way to its first attempt." if driver_at_work(files) else ""
    else:
        answer = channel.response(live.request)
        ended_well = answer is not None and answer.error is None
        exists = "" if ended_well else f"Attempt {live.attempt} of run {live.run} did not finish."
    if not exists:
        return None
    return InterruptedRunError(
        refused.failed,
        exists=exists,
        safe=refused.safe,
        remedy="A retry of this task asks again; see that the pipeline starts.",
        home=files.url,
        attempt=live and live.attempt,
    )


class RequestLook(NamedTuple):
    """What a home shows while a request is open."""

    answered: bool
    at_work: bool
    doing: str | None = None
    """What the attempt at work is doing."""
    cut_short: CutShort | None = None
    """What there is of a request that nobody is at work to answer."""
    runs_on: bool = False
    """Whether the pipeline is not about to end with its answer: that is an error, or a later attempt has begun since."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.answered and (self.runs_on or not self.at_work)


class LookForAnswer:
    """Looks at a home again and again.

    An answer is kept for an hour at least, and a wait looks every few seconds. So only the first look has to tell a request that is open
    from one whose answer was forgotten: a triggerer may have been away for long.

    Args:
        files: The home.
        request: What was asked.
    """

    def __init__(self, files: Files, request: RequestId) -> None:
        self._files, self._request = files, request
        self._was_open = False

    def __call__(self) -> RequestLook:
        """Looks once.

        Raises:
            InterruptedRunError: The request and its answer are not there any more.
        """
        at_work = driver_at_work(self._files)  # before the answer: what a driver has written last is seen
        answer = self._answer()
        if answer is not None:
            later = max(Attempts(self._files).numbers(), default=answer.attempt) > answer.attempt
            return RequestLook(True, at_work, runs_on=answer.error is not None or later)
        if not at_work:
            return RequestLook(False, False, cut_short=cut_short(self._files, self._request))
        status = read_status(self._files)
        return RequestLook(False, True, doing=doing(status) if status else None)

    def _answer(self) -> CheckpointResponse | None:
        requests = CheckpointRequests(self._files)
        answer = requests.answer_of(self._request)
        if answer is None and not self._was_open:
            self._was_open = requests.is_asked(self._request)
            answer = None if self._was_open else requests.answer_of(self._request)  # it may have been answered just now
            if not self._was_open and answer is None:
                raise InterruptedRunError(
                    f"{self._request} is not in {self._files.url} any more, and nor is its answer.",
                    exists="Old answers are forgotten when many newer requests have been answered; or the home was made anew.",
                    safe="Nothing was changed.",
                    remedy="See spark-jobs status. A retry of this task asks anew.",
                    home=self._files.url,
                    request=self._request,
                )
        return answer


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
        """Whether there is the answer; once a stop is done the driver's end is waited for, too: the next start finds the home free.

        Raises:
            InterruptedRunError: No driver was at work for too long.
            IncompleteError: The same, and the checkpoint that was asked for is complete.
            DeadlineExceededError: Time is up.
        """
        if look.answered:
            if self._answered_since_s is None:
                self._answered_since_s = now_s
            ends = self._request.startswith(Wanted.STOP.value)
            return look.is_over or not (ends and now_s - self._answered_since_s < END_WAIT_S)
        if look.at_work:
            self._gone_since_s = None
        elif self._gone_since_s is None:
            self._gone_since_s = now_s
        if self._gone_since_s is not None and now_s - self._gone_since_s >= self._restart_timeout_s:
            raise self._nobody(look.cut_short)
        if left_s is not None and left_s <= 0:
            raise self._too_late()
        return False

    def began_anew(self) -> None:
        """Nobody could look at the home until now: that was no absence of its driver."""
        self._gone_since_s = None

    def _nobody(self, found: CutShort | None) -> StreamPipelineError:
        failed = (
            f"No driver has been at work in {self._home} for {self._restart_timeout_s:g} s, and {self._request} is not answered."
        )
        if found is not None:
            return incomplete(
                failed,
                self._request,
                found,
                "Start the pipeline: it finishes this before anything else; a retry of this task waits on.",
            )
        return InterruptedRunError(
            failed,
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
