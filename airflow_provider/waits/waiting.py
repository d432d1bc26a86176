"""Judges looks at a home for waits on a run. It reads no home and no clock, so an operator and a trigger share it.

Invariants:

1. Only an answer ends a wait with success. A silent home never does.
2. A wait goes on while a driver works on the request, whichever process started it. If that driver ends without an answer, the wait ends
  with an error. A driver that works on another request does not count.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from spark_jobs.protocol.documents import AttemptDocument, StartResponse, Status
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    ExitCode,
    HomeInUseError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.protocol.reports import reported_error
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.waits.progress import progress

SILENCE_MAX_S = 15.0
"""How long a driver may be invisible, because it is starting or is on its way from its answer to its end."""
_UNANSWERED: dict[int, type[StreamPipelineError]] = {ExitCode.REFUSED: RejectedError, ExitCode.UNKNOWN: OutcomeUnknownError}


class Next(Enum):
    """The action of a task after its first look at a home."""

    RETURN = "return"
    """Return the answer: the run was answered without an error."""
    ADOPT = "adopt"
    """Wait for the driver that works on this run."""
    AWAIT = "await"
    """Wait for the driver that was requested for this run and may still be starting."""
    LET_END = "let_end"
    """Look again: the driver has answered and is about to end."""
    START = "start"
    """Request a start and start a driver."""
    GIVE_WAY = "give_way"
    """Fail: a driver works on another run, or was requested for it."""


class Waited(Enum):
    """The reason why a worker stops waiting for an attempt without an answer."""

    SEEN = "seen"
    """The driver is at work. The triggerer continues the wait."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """The previous owner has cancelled the attempt, so the next attempt begins."""
    RESTARTS = "restarts"
    """The attempt has failed, and its restart is due."""
    FAR_ENOUGH = "far_enough"
    """The pipeline has reached the goal of the task."""


@dataclass(frozen=True)
class FirstLook:
    """The state of a home before anything is requested."""

    answer: StartResponse | None
    """The newest answer for this run."""
    live: AttemptDocument | None
    """The newest attempt of any run."""
    live_answered: bool
    at_work: bool
    starting: StartRequest | None = None
    """The newest request, while its driver may still be waiting in a cluster's queue."""


def first_step(look: FirstLook, run: RunId) -> Next:
    """Decides the action for ``run``.

    A driver without an attempt may work for any run. On this host the decision is then START, because a second driver for the same
    request ends by itself.
    """
    if look.answer is not None and look.answer.error is None:
        return Next.RETURN
    works = look.at_work and look.live is not None
    if works and look.live is not None and not look.live_answered:
        return Next.ADOPT if look.live.run == run else Next.GIVE_WAY
    if look.starting is not None:
        return Next.AWAIT if look.starting.run == run else Next.GIVE_WAY
    return Next.LET_END if works else Next.START


@dataclass(frozen=True)
class RunLook:
    """The state of a home while a start request is open. The answer has to be read last, because a driver answers before it ends."""

    exit_code: int | None
    """The exit code of this process's own driver; None while it runs, or if another process has started the driver."""
    ours_runs: bool
    at_work: bool
    """True if a driver works on this request, or is about to end after the previous attempt."""
    status: Status | None
    answer: StartResponse | None
    taken_by: RequestId | None = None
    """Another request, if a driver on this host works on that one."""


@dataclass(frozen=True)
class StartLimit:
    """The time limit for the first sign of a driver that another process or a cluster starts."""

    until_s: float
    """The limit on a monotonic clock."""
    start_timeout_s: float
    """The configured time, for the error."""


class RunWait:
    """A wait for the answer to a start request.

    Args:
        home: The URL of the home, for errors.
        request: The request.
        began_s: The start of the wait on a monotonic clock.
        deadline_s: The deadline on that clock. None: the wait lasts as long as a driver is at work.
        timeout_s: The configured time, for the error. A wait that continues in another process began earlier.
        silence_max_s: How long a driver may be invisible; None: :data:`SILENCE_MAX_S`.
        start: How long a driver may be invisible before it has begun; None: as long as later.
    """

    def __init__(
        self,
        home: str,
        request: RequestId,
        *,
        began_s: float,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
        silence_max_s: float | None = None,
        start: StartLimit | None = None,
    ) -> None:
        self._start = start
        self._unseen = 0
        self._beat: datetime | None = None
        self._home, self._request = home, request
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._silence_max_s = SILENCE_MAX_S if silence_max_s is None else silence_max_s
        self._seen_s = began_s

    def judge(self, look: RunLook, now_s: float) -> StartResponse | None:
        """Returns the answer, or None if the wait goes on.

        Raises:
            StreamPipelineError: The driver has answered with this error.
            InterruptedRunError: The driver has ended without an answer. By its exit code it may also be RejectedError or
                OutcomeUnknownError.
            HomeInUseError: The driver has found the home in use.
            DeadlineExceededError: The deadline has passed.
        """
        if look.answer is not None:
            return checked(look.answer, self._home)
        if look.taken_by is not None and look.exit_code == ExitCode.FAILED:
            raise self._taken(look.taken_by)
        # Our driver ends with FAILED if an earlier one holds the lock.
        another_works = look.at_work and look.exit_code == ExitCode.FAILED
        if look.exit_code and not another_works:
            raise self._gone(_UNANSWERED.get(look.exit_code, InterruptedRunError), f"ended with exit code {look.exit_code}")
        beat = self._beat if look.status is None else look.status.updated_at
        if look.ours_runs or look.at_work or beat != self._beat:  # a new heartbeat counts whatever the clock of its host says
            self._seen_s, self._beat, self._unseen = now_s, beat, 0
        else:
            self._unseen += 1
        if look.ours_runs or look.status is not None:
            self._start = None  # it has begun; at_work alone could mean the previous driver
        # A single look may miss the driver. In a store, looks may be further apart than the allowed silence.
        silent = now_s - self._seen_s >= self._silence_max_s and self._unseen > 1
        if silent and self._start is None:
            raise self._gone(InterruptedRunError, f"has not been seen for {now_s - self._seen_s:.0f} s")
        if silent and self._start is not None and now_s >= self._start.until_s:
            raise self._not_begun(self._start)
        if self._deadline_s is not None and now_s >= self._deadline_s:
            raise self._too_late(look)
        return None

    def home_is_back(self, now_s: float) -> None:
        """Restarts the allowed silence: while the home could not be read, the driver was not silent."""
        self._seen_s, self._unseen = now_s, 0

    def _gone(self, kind: type[StreamPipelineError], what: str) -> StreamPipelineError:
        return kind(
            f"The driver for {self._request} in {self._home} {what} and left no answer.",
            safe="Completed checkpoints and published rows stay.",
            remedy="Read the driver's last lines in this task's log. A retry resumes from the newest checkpoint.",
            home=self._home,
            request=self._request,
        )

    def _taken(self, other: RequestId) -> HomeInUseError:
        return HomeInUseError(
            f"{self._home} is in use: a driver works on {other}, and the driver for {self._request} has ended.",
            safe="This attempt has not begun.",
            remedy="Let only one DAG run at a time use a home (max_active_runs=1), or give each its own home. A retry looks again.",
            home=self._home,
            request=self._request,
        )

    def _not_begun(self, start: StartLimit) -> InterruptedRunError:
        return InterruptedRunError(
            f"The driver for {self._request} in {self._home} has not begun within {start.start_timeout_s:g} s.",
            exists="It may still wait in the cluster's queue. If it begins later, it ends by itself.",
            safe="This attempt has not begun.",
            remedy="Read the cluster's queue, and the output of spark-submit in this task's log. If drivers wait that long in the "
            "queue, raise start_timeout_s.",
            home=self._home,
            request=self._request,
        )

    def _too_late(self, look: RunLook) -> DeadlineExceededError:
        running = "; ".join(progress(look.status)) if look.status else "it has written no heartbeat yet"
        return DeadlineExceededError(
            f"{self._request} in {self._home} has no answer after {self._timeout_s:g} s.",
            exists=f"Its driver is still at work: {running}.",
            safe="The driver was not stopped.",
            remedy="A retry waits for the same driver. Raise timeout_s if the input has grown.",
            home=self._home,
            request=self._request,
        )


def checked(answer: StartResponse, home: str) -> StartResponse:
    """Returns the answer if it is a success.

    Raises:
        StreamPipelineError: The driver has answered with this error.
        InterruptedRunError: The answer names no final checkpoint.
    """
    if answer.error is not None:
        raise reported_error(answer.error)
    if answer.checkpoint is None:
        raise InterruptedRunError(
            f"{answer.request} in {home} was answered without a final checkpoint.",
            safe="Completed checkpoints and published rows stay.",
            remedy=f"See its state: spark-jobs status --home {home}",
            home=home,
            request=answer.request,
        )
    return answer


def killed(home: str, *, cancelled: bool) -> InterruptedRunError:
    """Returns the error of a killed task, which may have cancelled its driver or left it at work."""
    return InterruptedRunError(
        "The task was killed.",
        exists="Its driver was cancelled." if cancelled else "If it has a driver, that driver goes on.",
        safe="Completed checkpoints and published rows stay.",
        remedy="A retry resumes." if cancelled else "A retry waits for that driver, or resumes.",
        home=home,
    )


def in_use(home: str, look: FirstLook) -> HomeInUseError:
    """Returns the error for a home in which a driver works on another run, or was requested for it."""
    works = look.at_work and not look.live_answered
    other = look.live if works or look.starting is None else look.starting
    assert other is not None
    attempt, run = other.attempt, other.run
    return HomeInUseError(
        f"{home} is in use: attempt {attempt} is {'at work' if works else 'asked for'}, for the run {run}.",
        safe="Nothing was started.",
        remedy="Let only one DAG run at a time use a home (max_active_runs=1), or give each its own home.",
        home=home,
        attempt=attempt,
        run=run,
    )


def not_ending(home: str, look: FirstLook) -> HomeInUseError:
    """Returns the error for a driver that holds the home after its answer, because Spark or a thread of the pipeline does not end."""
    live = look.live
    assert live is not None
    return HomeInUseError(
        f"{home} is in use: attempt {live.attempt} was answered, but its driver (process {live.process} on {live.host}) does not end.",
        safe="Nothing was started.",
        remedy="End that process and its Java process; then start again.",
        home=home,
        attempt=live.attempt,
        host=live.host,
        process=live.process,
    )
