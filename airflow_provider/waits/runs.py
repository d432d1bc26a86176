"""Looks at a home while a run is open, and judges the looks. Workers and triggers use the same code.

Invariants:

1. Only an answer ends a wait with success. A silent home never does.
2. A wait goes on while a driver works on the request, whichever process started it. If that driver ends without an answer, the wait ends
  with an error. A driver that works on another request does not count.
"""

import socket
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.goals import Goal
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import claimed_request, is_elsewhere, is_fresh, is_locked
from spark_jobs.control.old_starts import RUNS_KEPT, STARTS_KEPT
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import RESPONSES
from spark_jobs.protocol.documents import AttemptDocument, StartResponse, Status
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    ExitCode,
    HomeInUseError,
    InterruptedRunError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId, start_request_id
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files, is_mounted
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.limits import LIMITS, WaitLimits
from spark_jobs.waits.progress import ProgressLog, progress

HEARTBEAT_S = 30.0
"""The pause between two reads of the heartbeat in a store: half the age at which a driver counts as lost."""
_UNANSWERED: dict[int, type[StreamPipelineError]] = {ExitCode.REFUSED: RejectedError, ExitCode.UNKNOWN: OutcomeUnknownError}


class Waited(Enum):
    """The reason why a worker stops waiting for an attempt without an answer."""

    SEEN = "seen"
    """The driver was seen, or the time for its first sign is over. The triggerer continues the wait."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """The previous owner has cancelled the attempt, so the next attempt begins."""
    RESTARTS = "restarts"
    """The attempt has failed, and its restart is due."""
    FAR_ENOUGH = "far_enough"
    """The pipeline has reached the goal of the task."""


@dataclass(frozen=True)
class RunLook:
    """The state of a home while a start request is open. The answer has to be read last, because a driver answers before it ends."""

    exit_code: int | None
    """The exit code of this process's own driver; None while it runs, or if another process has started the driver."""
    ours_runs: bool
    """True if this process has started a driver, and that driver runs."""
    at_work: bool
    """True if a driver works on this request, or is about to end after the previous attempt."""
    status: Status | None
    """The newest heartbeat of this request's attempt; None if it has none."""
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


def start_limit(start_by: float | None, start_timeout_s: float) -> StartLimit | None:
    """Returns the time limit for the first sign of a driver, on this process's clock.

    Args:
        start_by: The limit in seconds since 1970; None: there is none.
        start_timeout_s: The configured time.
    """
    return None if start_by is None else StartLimit(monotonic_at(start_by), start_timeout_s)


@dataclass
class RunWait(HomeWait[RunLook, "StartResponse | Waited"]):
    """Waits for the answer to a start request, or until the pipeline reaches the goal of its task.

    Args:
        request: The request.
        goal: The goal of the task.
        start: How long a driver may be invisible before it has begun; None: as long as a driver that has begun.
        began_s: The start of the wait on a monotonic clock.
        limits: The time limits of the wait.
    """

    request: RequestId
    goal: Goal
    start: StartLimit | None = None
    began_s: float = field(default_factory=time.monotonic)
    limits: WaitLimits = LIMITS

    def __post_init__(self) -> None:
        self._looks = RunLooks(self.files, self.request, follows=self.goal.follows)
        self._progress = ProgressLog()
        self._start = self.start
        self._seen_s, self._unseen = self.began_s, 0
        self._beat: datetime | None = None

    @property
    def key(self) -> Hashable:
        return "answer", self.request, self.goal.follows

    def look(self) -> RunLook:
        return self._looks()

    def same(self, before: RunLook, now: RunLook) -> bool:
        return same_run(before, now)

    def news(self, look: RunLook, now_s: float) -> list[str]:
        return self._progress.lines(look.status, now_s)

    def is_started(self, look: RunLook) -> bool:
        """Returns True if a driver for the request was started."""
        return look.at_work

    def judge(self, look: RunLook, now_s: float) -> "StartResponse | Waited | None":
        """Returns the answer, or :attr:`Waited.FAR_ENOUGH`, or None if the wait goes on.

        Raises:
            StreamPipelineError: The driver has answered with this error.
            InterruptedRunError: The driver has ended without an answer. By its exit code it may also be RejectedError or
                OutcomeUnknownError.
            HomeInUseError: The driver has found the home in use.
        """
        if look.answer is not None:
            return checked(look.answer, self.files.url)
        if look.taken_by is not None and look.exit_code == ExitCode.FAILED:
            raise self._taken(look.taken_by)
        # Our driver ends with FAILED if an earlier one holds the lock.
        another_works = look.at_work and look.exit_code == ExitCode.FAILED
        if look.exit_code and not another_works:
            raise self._gone(_UNANSWERED.get(look.exit_code, InterruptedRunError), f"ended with exit code {look.exit_code}")
        beat = self._beat if look.status is None else look.status.updated_at
        if look.ours_runs or look.at_work or beat != self._beat:  # a new heartbeat counts, also if the clock of its host is wrong
            self._seen_s, self._beat, self._unseen = now_s, beat, 0
        else:
            self._unseen += 1
        if look.ours_runs or look.status is not None:
            self._start = None  # the driver has begun; at_work alone could be the previous driver
        # One look may miss the driver, and in a store the pause between two looks may be longer than the allowed silence.
        silent = now_s - self._seen_s >= self.limits.silence_s and self._unseen > 1
        if silent and self._start is None:
            raise self._gone(InterruptedRunError, f"has not been seen for {now_s - self._seen_s:.0f} s")
        if silent and self._start is not None and now_s >= self._start.until_s:
            raise self._not_begun(self._start)
        return Waited.FAR_ENOUGH if self.goal.is_reached(look.status, now_s, started=self.is_started(look)) else None

    def home_is_back(self, now_s: float) -> None:
        """Restarts the allowed silence: while the home could not be read, the driver was not silent."""
        self._seen_s, self._unseen = now_s, 0

    def _gone(self, kind: type[StreamPipelineError], what: str) -> StreamPipelineError:
        return kind(
            f"The driver for {self.request} in {self.files.url} {what} and left no answer.",
            safe="Completed checkpoints and published rows stay.",
            remedy="Read the driver's last lines in this task's log. A retry resumes from the newest checkpoint.",
            home=self.files.url,
            request=self.request,
        )

    def _taken(self, other: RequestId) -> HomeInUseError:
        return HomeInUseError(
            f"{self.files.url} is in use: a driver works on {other}, and the driver for {self.request} has ended.",
            safe="This attempt has not begun.",
            remedy="Let only one DAG run at a time use a home (max_active_runs=1), or give each its own home. A retry looks again.",
            home=self.files.url,
            request=self.request,
        )

    def _not_begun(self, start: StartLimit) -> InterruptedRunError:
        return InterruptedRunError(
            f"The driver for {self.request} in {self.files.url} has not begun within {start.start_timeout_s:g} s.",
            exists="It may still wait in the cluster's queue. If it begins later, it ends by itself.",
            safe="This attempt has not begun.",
            remedy="Read the cluster's queue, and the output of spark-submit in this task's log. If drivers wait that long in the "
            "queue, raise start_timeout_s.",
            home=self.files.url,
            request=self.request,
        )

    def too_late(self, look: RunLook, timeout_s: float | None) -> DeadlineExceededError:
        running = "; ".join(progress(look.status)) if look.status else "it has written no heartbeat yet"
        return DeadlineExceededError(
            f"{self.request} in {self.files.url} has no answer after {timeout_s or 0.0:g} s.",
            exists=f"Its driver is still at work: {running}.",
            safe="The driver was not stopped.",
            remedy="A retry waits for the same driver. Raise timeout_s if the input has grown.",
            home=self.files.url,
            request=self.request,
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
            remedy=f"See its state: spark-jobs status --home {home}",
            home=home,
            request=answer.request,
        )
    return answer


def look_at_run(files: Files, request: RequestId, driver: LocalDriver | None = None) -> RunLook:
    """Looks at the home while a start request is open.

    Args:
        files: The home.
        request: The start request.
        driver: The driver, if this process has started it.

    Raises:
        NotFoundError: The home does not contain the request: it is not on this host, or its file system is not mounted. The state of
            the driver is then unknown.
        StorageError: The home cannot be read.
    """
    return _look(files, request, driver, read_status(files), Attempts(files).latest, lambda: Channel(files).response(request))


class RunLooks:
    """Looks at a home repeatedly while a start request is open.

    In a store, the heartbeat is only read every :data:`HEARTBEAT_S`, because reading a file costs several times as much as a listing. A
    listing shows the answer at each look.

    Args:
        files: The home.
        request: The start request.
        follows: Read the heartbeat at each look, for a wait that depends on the driver's activity.
        clock_s: A monotonic clock.
    """

    def __init__(self, files: Files, request: RequestId, *, follows: bool, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._files, self._request, self._clock_s = files, request, clock_s
        self._reads_all = follows or is_mounted(files)
        self._status: Status | None = None
        self._live: AttemptDocument | None = None
        self._due_s = float("-inf")
        self._has_answers = False

    def __call__(self) -> RunLook:
        """Looks once; see :func:`look_at_run`."""
        if self._reads_all:
            return look_at_run(self._files, self._request)
        now_s = self._clock_s()
        if self._status is None or now_s >= self._due_s:
            self._status = read_status(self._files)
            if self._live is None or self._status is None or self._status.attempt != self._live.attempt:
                # An attempt's document never changes, and a newer attempt has its own heartbeats.
                self._live = Attempts(self._files).latest()
            self._due_s = now_s + HEARTBEAT_S
        return _look(self._files, self._request, None, self._status, lambda: self._live, self._answer)

    def _answer(self) -> StartResponse | None:
        """Reads the answer, but only if the home has a directory of answers: in HDFS, listing a missing directory costs twice as much."""
        self._has_answers = self._has_answers or RESPONSES in self._files.names("")
        return Channel(self._files).response(self._request) if self._has_answers else None


def _look(
    files: Files,
    request: RequestId,
    driver: LocalDriver | None,
    status: Status | None,
    newest: Callable[[], AttemptDocument | None],
    answered: Callable[[], StartResponse | None],
) -> RunLook:
    exit_code = driver.exit_code if driver is not None else None
    claimed = claimed_request(files)
    at_work = claimed == request if claimed else _may_be_for(files, request, status, newest)
    if driver is not None and driver.submits:  # the end of spark-submit only matters if it could not submit the driver
        driver, exit_code = None, None if at_work else exit_code or None
    answer = answered()
    is_overtaken = status is not None and start_request_id(status.attempt) != request
    if not at_work and answer is None and (status is None or is_overtaken):
        _check_is_there(files, request, may_be_forgotten=is_overtaken)
    return RunLook(
        exit_code=exit_code,
        ours_runs=driver is not None and exit_code is None,
        at_work=at_work,
        status=status if status is not None and start_request_id(status.attempt) == request else None,
        taken_by=None if claimed in (None, request) else claimed,
        answer=answer,
    )


def _may_be_for(files: Files, request: RequestId, status: Status | None, newest: Callable[[], AttemptDocument | None]) -> bool:
    """Returns True if a driver may work on this request although its lock does not name it: it has just begun, or is on another host."""
    holds, live = is_locked(files), newest()
    if live is None:
        return holds
    works = holds or (is_elsewhere(files, live) and is_fresh(status, live))
    return works and live.attempt <= int(request.removeprefix("start-"))


def _check_is_there(files: Files, request: RequestId, *, may_be_forgotten: bool) -> None:
    """Refuses a home that is not mounted, and a home whose request was deleted. A home that only lacks a sign of the driver passes."""
    try:
        Channel(files).request(request)
    except NotFoundError as error:
        if may_be_forgotten:
            raise InterruptedRunError(
                f"{request} in {files.url} was deleted: {STARTS_KEPT} later starts were requested since.",
                exists=f"Its run has a newer answer, or {RUNS_KEPT:,} other runs were answered since.",
                remedy="A retry of the task returns the newest answer of its run, or runs it again.",
                home=files.url,
                request=request,
            ) from error
        raise NotFoundError(
            f"{files.url} has no {request} on {socket.gethostname()}: its file system is not mounted there, or the home was removed.",
            remedy="If it is a directory, mount it there under the same path. Then clear the task. If the home is lost, start again with a "
            "new home: its run computes the published rows again.",
            home=files.url,
            request=request,
        ) from error


def same_run(before: RunLook, now: RunLook) -> bool:
    """Returns True if two looks differ only in heartbeats and progress, which no task needs at every look."""
    return _news(before) == _news(now)


def _news(look: RunLook) -> object:
    return look.at_work, look.answer, look.status and (look.status.attempt, look.status.state)


@dataclass(kw_only=True)
class WorkerWait(RunWait):
    """Waits for an attempt in the process of its task.

    Args:
        driver: The driver, if this process has started it.
        until_seen_s: How long to wait for the first sign of the driver; None: until the driver has answered.
        look_at: Looks once.
    """

    driver: LocalDriver | None
    until_seen_s: float | None
    look_at: Callable[[Files, RequestId, LocalDriver | None], RunLook] = look_at_run

    def look(self) -> RunLook:
        return self.look_at(self.files, self.request, self.driver)

    def is_started(self, look: RunLook) -> bool:
        return look.at_work or look.ours_runs or self._is_submitted

    def judge(self, look: RunLook, now_s: float) -> StartResponse | Waited | None:
        """Returns also :attr:`Waited.SEEN`; see :meth:`RunWait.judge`."""
        result = super().judge(look, now_s)
        if result is not None or self.until_seen_s is None:
            return result
        triggerer_sees_lock = is_mounted(self.files)  # the triggerer may not have the cache of a home in a store
        seen = self._is_submitted or look.status is not None or (look.at_work and triggerer_sees_lock)
        return Waited.SEEN if seen or now_s - self.began_s >= self.until_seen_s else None

    @property
    def _is_submitted(self) -> bool:
        # If the submission failed, the next look reports it.
        return self.driver is not None and self.driver.submits and self.driver.exit_code == 0
