"""Looks at a home through its documents, for tasks and triggers."""

import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.waiting import FirstLook, RunLook, StartLimit
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import claimed_by_another, claimed_request, driver_at_work, is_elsewhere, is_fresh, is_locked
from spark_jobs.control.old_starts import STARTS_KEPT
from spark_jobs.control.owners import Owners
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import RESPONSES
from spark_jobs.protocol.documents import AttemptDocument, StartResponse, Status
from spark_jobs.protocol.errors import InterruptedRunError, NotFoundError
from spark_jobs.protocol.ids import RequestId, RunId, start_request_id
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files, is_here

HEARTBEAT_S = 30.0
"""The pause between two reads of the heartbeat in a store: half the age at which a driver counts as lost."""


def first_look(files: Files, run: RunId, start_timeout_s: float | None) -> FirstLook:
    """Looks at a home before anything is requested. Writes nothing.

    Args:
        files: The home.
        run: The run.
        start_timeout_s: How long a driver may wait in a cluster's queue; None: drivers are processes of this host.
    """
    channel = Channel(files)
    at_work = driver_at_work(files)  # first: a driver answers before it ends
    live = channel.attempts.latest()
    if live is not None and claimed_by_another(files, live.request):
        live = None  # the driver at work has not begun its own attempt yet
    answered = live is not None and channel.response(live.request) is not None
    return FirstLook(
        answer=channel.answer(run),
        live=live,
        live_answered=answered,
        at_work=at_work,
        starting=None if start_timeout_s is None else _starting(channel, start_timeout_s),
    )


def _starting(channel: Channel, start_timeout_s: float) -> StartRequest | None:
    """Returns the newest request if its driver is still wanted and may still begin."""
    request = channel.unclaimed()
    if request is None or Owners(channel.files, request.attempt).cancelled() is not None:
        return None
    return request if (datetime.now(UTC) - request.requested_at).total_seconds() < start_timeout_s else None


def start_limit(start_by: float | None, start_timeout_s: float) -> StartLimit | None:
    """Returns the time limit for the first sign of a driver, on this process's clock.

    Args:
        start_by: The limit in seconds since 1970; None: there is none.
        start_timeout_s: The configured time.
    """
    return None if start_by is None else StartLimit(monotonic_at(start_by), start_timeout_s)


def look_at_run(files: Files, request: RequestId, driver: LocalDriver | None = None) -> RunLook:
    """Looks at the home while a start request is open.

    Args:
        files: The home.
        request: The start request.
        driver: The driver, if this process has started it.

    Raises:
        NotFoundError: The home does not contain the request: it is not on this host, or its file system is not mounted. Such a home says
            nothing about the driver.
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
    """

    def __init__(self, files: Files, request: RequestId, *, follows: bool) -> None:
        self._files, self._request = files, request
        self._reads_all = follows or is_here(files)
        self._status: Status | None = None
        self._live: AttemptDocument | None = None
        self._due_s = float("-inf")
        self._has_answers = False

    def __call__(self) -> RunLook:
        """Looks once; see :func:`look_at_run`."""
        if self._reads_all:
            return look_at_run(self._files, self._request)
        now_s = time.monotonic()
        if self._status is None or now_s >= self._due_s:
            self._status = read_status(self._files)
            if self._live is None or self._status is None or self._status.attempt != self._live.attempt:
                # An attempt's document never changes, and a newer attempt has its own heartbeats.
                self._live = Attempts(self._files).latest()
            self._due_s = now_s + HEARTBEAT_S
        return _look(self._files, self._request, None, self._status, lambda: self._live, self._answer)

    def _answer(self) -> StartResponse | None:
        """Reads the answer, but only after the first listing with answers: listing a missing directory costs HDFS twice as much."""
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
    """Returns whether a driver may work on this request although its lock does not name it: it has just begun, or is on another host."""
    holds, live = is_locked(files), newest()
    if live is None:
        return holds
    works = holds or (is_elsewhere(files, live) and is_fresh(status, live))
    return works and live.attempt <= int(request.removeprefix("start-"))


def _check_is_there(files: Files, request: RequestId, *, may_be_forgotten: bool) -> None:
    """Refuses a home that is not mounted, and one in which the request was forgotten. A silent home passes."""
    try:
        Channel(files).request(request)
    except NotFoundError as error:
        if may_be_forgotten:
            raise InterruptedRunError(
                f"{request} in {files.url} was deleted: {STARTS_KEPT} later starts were requested since.",
                exists="Its run has a newer answer, or 1,000 other runs were answered since.",
                safe="Completed checkpoints and published rows stay.",
                remedy="A retry of the task returns the newest answer of its run, or runs it again.",
                home=files.url,
                request=request,
            ) from error
        raise NotFoundError(
            f"{files.url} has no {request} on {socket.gethostname()}: its file system is not mounted there, or the home was removed.",
            safe="Nothing was started or written.",
            remedy="Mount it there under the same path, then clear the task. If the home is lost, start again with a new home: its run "
            "computes the published rows again.",
            home=files.url,
            request=request,
        ) from error


def same_run(before: RunLook, now: RunLook) -> bool:
    """Returns whether two looks differ only in heartbeats and progress, which no task needs every second."""
    return _news(before) == _news(now)


def _news(look: RunLook) -> object:
    return look.at_work, look.answer, look.status and (look.status.attempt, look.status.state)
