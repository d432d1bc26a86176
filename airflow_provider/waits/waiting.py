"""What a look at a home means for whoever waits for a run. No I/O, no clock of its own: an operator and a trigger share it.

Invariants:

1. Only an answer ends a wait with success. A silent home never does.
2. A driver that is at work on the request is waited for, whoever started it; one that has gone without an answer ends the wait with an
   error. One that is at work on another request is no sign of it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from airflow_provider.waits.progress import progress
from spark_jobs.protocol.documents import AttemptDocument, StartRequest, StartResponse, Status
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    ExitCode,
    HomeInUseError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.protocol.reports import reported_error

SILENCE_MAX_S = 15.0
"""A driver may be starting, or be on its way from its answer to its end, while nothing is seen of it."""
STORAGE_PATIENCE_S = 300.0
"""How long a home may not be readable before a wait ends with that."""
LOOK_PATIENCE_S = STORAGE_PATIENCE_S
"""How long a look may take: a storage that does not answer is borne as long as one that is away."""
LOOK_MAX_S = 30.0
"""How long after a deadline a look may take that has to say what is going on."""
_UNANSWERED: dict[int, type[StreamPipelineError]] = {ExitCode.REFUSED: RejectedError, ExitCode.UNKNOWN: OutcomeUnknownError}


class Next(Enum):
    """What a task does after its first look at a home."""

    RETURN = "return"
    """The run was answered without error."""
    ADOPT = "adopt"
    """A driver is at work for this very run: wait for it."""
    AWAIT = "await"
    """A driver was asked for, for this very run, and may still be on its way: wait for it."""
    LET_END = "let_end"
    """The driver at work has answered already and is on its way out: look again."""
    START = "start"
    """Ask, and start a driver."""
    GIVE_WAY = "give_way"
    """A driver is at work for another run, or on its way."""


class Waited(Enum):
    """Why a worker stops waiting for an attempt that has not answered."""

    SEEN = "seen"
    """Its driver is at work, and the triggerer waits for the rest."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """Who had charge of it before has cancelled it: the next one begins."""
    RESTARTS = "restarts"
    """It has failed, and the restart strategy says that it is time for the next one."""
    FAR_ENOUGH = "far_enough"
    """It is as far as the task waits for."""


@dataclass(frozen=True)
class FirstLook:
    """What a home shows before anything is asked."""

    answer: StartResponse | None
    """The newest answer of this run."""
    live: AttemptDocument | None
    """The newest attempt of any run."""
    live_answered: bool
    at_work: bool
    starting: StartRequest | None = None
    """The newest request, while a driver for it may still be on its way from a cluster's queue."""


def first_step(look: FirstLook, run: RunId) -> Next:
    """What to do for ``run``.

    A driver that has no attempt yet may be anybody's: on this host it is met with START, because a second driver for one request
    ends by itself.
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
class Look:
    """What a home shows while a request is open. The answer has to be read last: a driver answers before it ends."""

    exit_code: int | None
    """Of the driver that the waiting process has started; None while it runs, and where another process started it."""
    ours_runs: bool
    at_work: bool
    """Whether a driver is, on this request, or still on the way out of the attempt before it."""
    status: Status | None
    answer: StartResponse | None
    taken_by: RequestId | None = None
    """The other request that a driver on this host is at work on."""


@dataclass(frozen=True)
class StartLimit:
    """How long the first sign of a driver may take that somebody else starts."""

    until_s: float
    """On a clock that only goes forward."""
    start_timeout_s: float
    """What was asked for, for the error."""


class Patience:
    """How long a wait bears with a home that cannot be looked at. What a look has *shown* is none of its business.

    Args:
        end_s: When the wait ends at the latest, on a clock that only goes forward; None: never by itself.
    """

    def __init__(self, end_s: float | None) -> None:
        self._end_s = end_s
        self._away_since_s: float | None = None
        self._has_seen = False

    def seen(self) -> None:
        """A look has succeeded."""
        self._away_since_s, self._has_seen = None, True

    @property
    def is_tried(self) -> bool:
        """Whether the last look has failed."""
        return self._away_since_s is not None

    def look_max_s(self, now_s: float) -> float:
        """How long a look that begins now may take. A second one would hang as the first does, in one more thread."""
        return LOOK_PATIENCE_S if self._end_s is None else min(LOOK_PATIENCE_S, max(0.0, self._end_s - now_s) + LOOK_MAX_S)

    def bears(self, error: StreamPipelineError, now_s: float) -> bool:
        """Whether a look that has failed is worth another one.

        A storage that refuses what it has allowed before may be about to get new keys, or to set its clock.
        """
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        passing = isinstance(error, StorageError) and (self._has_seen or not isinstance(error, AccessDeniedError))
        in_time = self._end_s is None or now_s < self._end_s
        return passing and in_time and now_s - self._away_since_s < STORAGE_PATIENCE_S


class Wait:
    """One wait for the answer to a request.

    Args:
        home: URL of the home, for errors.
        request: What is waited for.
        began_s: When the wait began, on a clock that only goes forward.
        deadline_s: When it ends at the latest, on that clock. None: it lasts as long as a driver is at work.
        timeout_s: What was asked for, for the error: a wait that goes on in another process has begun before.
        silence_max_s: How long nothing may be seen of a driver.
        start: How long nothing may be seen of a driver that has not begun; None: as long as of any.
    """

    def __init__(
        self,
        home: str,
        request: RequestId,
        *,
        began_s: float,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
        silence_max_s: float = SILENCE_MAX_S,
        start: StartLimit | None = None,
    ) -> None:
        self._start = start
        self._unseen = 0
        self._beat: datetime | None = None
        self._home, self._request = home, request
        self._deadline_s = deadline_s
        self._timeout_s, self._silence_max_s = timeout_s, silence_max_s
        self._seen_s = began_s

    def see(self, look: Look, now_s: float) -> StartResponse | None:
        """The answer, or None while it is worth waiting.

        Raises:
            StreamPipelineError: What the driver has answered with.
            InterruptedRunError: The driver is gone without an answer. So are RejectedError and OutcomeUnknownError, where it has
                only left its exit code.
            HomeInUseError: The driver has found the home taken.
            DeadlineExceededError: Time is up.
        """
        if look.answer is not None:
            return checked(look.answer, self._home)
        if look.taken_by is not None and look.exit_code == ExitCode.FAILED:
            raise self._taken(look.taken_by)
        another_works = look.at_work and look.exit_code == ExitCode.FAILED  # ours met the lock of one that came first
        if look.exit_code and not another_works:
            raise self._gone(_UNANSWERED.get(look.exit_code, InterruptedRunError), f"ended with exit code {look.exit_code}")
        beat = self._beat if look.status is None else look.status.updated_at
        if look.ours_runs or look.at_work or beat != self._beat:  # a new heartbeat is a sign whatever the clock of its host says
            self._seen_s, self._beat, self._unseen = now_s, beat, 0
        else:
            self._unseen += 1
        if look.ours_runs or look.status is not None:
            self._start = None  # it has begun; who is at work may still be the one before it
        # One look may come at a bad moment, and where looks are paid for, the one before it is older than a silence may be.
        silent = now_s - self._seen_s >= self._silence_max_s and self._unseen > 1
        if silent and self._start is None:
            raise self._gone(InterruptedRunError, f"has not been seen for {now_s - self._seen_s:.0f} s")
        if silent and self._start is not None and now_s >= self._start.until_s:
            raise self._not_begun(self._start)
        if self._deadline_s is not None and now_s >= self._deadline_s:
            raise self._too_late(look)
        return None

    def began_anew(self, now_s: float) -> None:
        """Nobody could look at the home until now: that was no silence of its driver."""
        self._seen_s, self._unseen = now_s, 0

    def _gone(self, kind: type[StreamPipelineError], what: str) -> StreamPipelineError:
        return kind(
            f"The driver for {self._request} in {self._home} {what} and left no answer.",
            safe="Completed checkpoints, and what was published, stay.",
            remedy="Read the driver's last lines in this task's log. A retry resumes from what is durable.",
            home=self._home,
            request=self._request,
        )

    def _taken(self, other: RequestId) -> HomeInUseError:
        return HomeInUseError(
            f"{self._home} is in use: a driver is at work on {other}, and the one for {self._request} has ended.",
            safe="Nothing of this attempt was begun.",
            remedy="Let one DAG run at a time use a home (max_active_runs=1), or give each a home of its own. A retry looks again.",
            home=self._home,
            request=self._request,
        )

    def _not_begun(self, start: StartLimit) -> InterruptedRunError:
        return InterruptedRunError(
            f"The driver for {self._request} in {self._home} has not begun within {start.start_timeout_s:g} s.",
            exists="It may wait in the cluster's queue. If it begins later, it ends by itself.",
            safe="Nothing of this attempt was begun.",
            remedy="See the cluster's queue, and what spark-submit has said in this task's log. Raise start_timeout_s if that is how "
            "long a driver waits there.",
            home=self._home,
            request=self._request,
        )

    def _too_late(self, look: Look) -> DeadlineExceededError:
        running = "; ".join(progress(look.status)) if look.status else "it has not reported yet"
        return DeadlineExceededError(
            f"{self._request} in {self._home} has no answer after {self._timeout_s:g} s.",
            exists=f"Its driver is still at work: {running}.",
            safe="The driver was not stopped.",
            remedy="A retry waits for the same driver. Raise timeout_s if the input has grown.",
            home=self._home,
            request=self._request,
        )


def checked(answer: StartResponse, home: str) -> StartResponse:
    """An answer that is a success.

    Raises:
        StreamPipelineError: What the driver has answered with.
        InterruptedRunError: It names no final checkpoint.
    """
    if answer.error is not None:
        raise reported_error(answer.error)
    if answer.checkpoint is None:
        raise InterruptedRunError(
            f"{answer.request} in {home} was answered without a final checkpoint.",
            safe="What is durable stays.",
            remedy=f"Look at the home: spark-jobs status --home {home}",
            home=home,
            request=answer.request,
        )
    return answer


def killed(home: str, *, cancelled: bool) -> InterruptedRunError:
    """That a task was killed, which has cancelled its driver or has left it at work."""
    return InterruptedRunError(
        "The task was killed.",
        exists="Its driver was cancelled." if cancelled else "If a driver is at work for it, that goes on.",
        safe="Completed checkpoints, and what was published, stay.",
        remedy="A next try resumes." if cancelled else "A next try waits for that driver, or resumes.",
        home=home,
    )


def in_use(home: str, look: FirstLook) -> HomeInUseError:
    """That a home is taken: a driver of another run is at work there, or on its way."""
    works = look.at_work and not look.live_answered
    other = look.live if works or look.starting is None else look.starting
    assert other is not None
    attempt, run = other.attempt, other.run
    return HomeInUseError(
        f"{home} is in use: attempt {attempt} is {'at work' if works else 'asked for'}, for the run {run}.",
        safe="Nothing was started.",
        remedy="Let one DAG run at a time use a home (max_active_runs=1), or give each a home of its own.",
        home=home,
        attempt=attempt,
        run=run,
    )


def not_ending(home: str, look: FirstLook) -> HomeInUseError:
    """That a driver goes on to hold the home after its answer: Spark, or a thread of the pipeline's own, does not let it end."""
    live = look.live
    assert live is not None
    return HomeInUseError(
        f"{home} is in use: attempt {live.attempt} was answered, and its driver, process {live.process} on {live.host}, does not end.",
        safe="Nothing was started.",
        remedy="End that process, and the Java process that it has started; then start again.",
        home=home,
        attempt=live.attempt,
        host=live.host,
        process=live.process,
    )
