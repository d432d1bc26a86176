"""Looks at a home through its documents: what tasks and triggers see of it."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.progress import doing
from airflow_provider.waits.waiting import FirstLook, Look, StartLimit
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.cancelling import Cancelled, has_ended
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import claimed_by_another, claimed_request, driver_at_work, is_elsewhere, is_fresh, is_locked
from spark_jobs.control.old_starts import STARTS_KEPT
from spark_jobs.control.owners import Owners
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import RESPONSES
from spark_jobs.protocol.documents import AttemptDocument, Manifest, StartRequest, StartResponse, Status
from spark_jobs.protocol.errors import CorruptDocumentError, InterruptedRunError, NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, RunId, start_request_id
from spark_jobs.storage.files import Files, is_here

HEARTBEAT_S = 30.0
"""Half of what a heartbeat may be old until its driver is taken for lost."""


def first_look(files: Files, run: RunId, start_timeout_s: float | None) -> FirstLook:
    """What a home shows before anything is asked; writes nothing.

    Args:
        files: The home.
        run: Whose answer is looked for.
        start_timeout_s: How long a driver may be on its way from a cluster's queue; None: drivers are processes of this host.
    """
    channel = Channel(files)
    at_work = driver_at_work(files)  # first: a driver answers before it ends
    live = channel.attempts.latest()
    if live is not None and claimed_by_another(files, live.request):
        live = None  # the driver at work is still on its way to an attempt of its own
    answered = live is not None and channel.response(live.request) is not None
    return FirstLook(
        answer=channel.answer(run),
        live=live,
        live_answered=answered,
        at_work=at_work,
        starting=None if start_timeout_s is None else _starting(channel, start_timeout_s),
    )


def _starting(channel: Channel, start_timeout_s: float) -> StartRequest | None:
    """The newest request while its driver is still wanted, and may still begin."""
    request = channel.unclaimed()
    if request is None or Owners(channel.files, request.attempt).cancelled() is not None:
        return None
    return request if (datetime.now(UTC) - request.requested_at).total_seconds() < start_timeout_s else None


def start_limit(start_by: float | None, start_timeout_s: float) -> StartLimit | None:
    """When a driver has to have begun, for a wait in this process.

    Args:
        start_by: In seconds since 1970; None: there is no such limit.
        start_timeout_s: The time that it ends.
    """
    return None if start_by is None else StartLimit(monotonic_at(start_by), start_timeout_s)


def look_for_answer(files: Files, request: RequestId, driver: LocalDriver | None = None) -> Look:
    """What the home shows of an open request.

    Args:
        files: The home.
        request: The start request.
        driver: The driver, where this process has started it.

    Raises:
        NotFoundError: The home does not even have the request: it is not on this host, or is another directory than the one that was
            asked in, such as the empty place where a file system is mounted. Its silence says nothing of the driver.
        StorageError: It cannot be read.
    """
    return _look(files, request, driver, read_status(files), Attempts(files).latest, lambda: Channel(files).response(request))


class LookForRun:
    """Looks at a home for the answer to a request, again and again.

    In a store what says that the driver lives is read every :data:`HEARTBEAT_S` only: a listing tells of the answer, at each look, and to
    read a file costs several times as much.

    Args:
        files: The home.
        request: The start request.
        follows: Whether what the driver is doing matters from look to look, as for who waits until it runs.
    """

    def __init__(self, files: Files, request: RequestId, *, follows: bool) -> None:
        self._files, self._request = files, request
        self._reads_all = follows or is_here(files)
        self._status: Status | None = None
        self._live: AttemptDocument | None = None
        self._due_s = float("-inf")
        self._has_answers = False

    def __call__(self) -> Look:
        """As :func:`look_for_answer`."""
        if self._reads_all:
            return look_for_answer(self._files, self._request)
        now_s = time.monotonic()
        if self._status is None or now_s >= self._due_s:
            self._status = read_status(self._files)
            if self._live is None or self._status is None or self._status.attempt != self._live.attempt:
                self._live = Attempts(
                    self._files
                ).latest()  # what it says never changes, and a newer one has heartbeats of its own
            self._due_s = now_s + HEARTBEAT_S
        return _look(self._files, self._request, None, self._status, lambda: self._live, self._answer)

    def _answer(self) -> StartResponse | None:
        """To list what is not there, as until the first answer, costs HDFS and its client twice as much as to list what is."""
        self._has_answers = self._has_answers or RESPONSES in self._files.names("")
        return Channel(self._files).response(self._request) if self._has_answers else None


def _look(
    files: Files,
    request: RequestId,
    driver: LocalDriver | None,
    status: Status | None,
    newest: Callable[[], AttemptDocument | None],
    answered: Callable[[], StartResponse | None],
) -> Look:
    exit_code = driver.exit_code if driver is not None else None
    claimed = claimed_request(files)
    at_work = claimed == request if claimed else _may_be_for(files, request, status, newest)
    if driver is not None and driver.submits:  # its end says nothing of the driver, unless it could not submit it
        driver, exit_code = None, None if at_work else exit_code or None
    answer = answered()
    is_overtaken = status is not None and start_request_id(status.attempt) != request
    if not at_work and answer is None and (status is None or is_overtaken):
        _check_is_there(files, request, may_be_forgotten=is_overtaken)
    return Look(
        exit_code=exit_code,
        ours_runs=driver is not None and exit_code is None,
        at_work=at_work,
        status=status if status is not None and start_request_id(status.attempt) == request else None,
        taken_by=None if claimed in (None, request) else claimed,
        answer=answer,
    )


def _may_be_for(files: Files, request: RequestId, status: Status | None, newest: Callable[[], AttemptDocument | None]) -> bool:
    """Whether a driver is at work that does not say on what: one that has only just begun, or is on another host."""
    holds, live = is_locked(files), newest()
    if live is None:
        return holds
    works = holds or (is_elsewhere(files, live) and is_fresh(status, live))
    return works and live.attempt <= int(request.removeprefix("start-"))


def _check_is_there(files: Files, request: RequestId, *, may_be_forgotten: bool) -> None:
    """Tells a home that is silent from one that is away, and from one in which the request was forgotten."""
    try:
        Channel(files).request(request)
    except NotFoundError as error:
        if may_be_forgotten:
            raise InterruptedRunError(
                f"{request} in {files.url} was forgotten: {STARTS_KEPT} later ones have been asked for since.",
                exists="Its run has a newer answer, or 1,000 other runs have been answered since.",
                safe="Completed checkpoints, and what was published, stay.",
                remedy="A retry of the task gets the newest answer of its run, or runs it again.",
                home=files.url,
                request=request,
            ) from error
        raise NotFoundError(
            f"{files.url} has no {request} on {socket.gethostname()}: its file system is not mounted there, or the home was removed.",
            safe="Nothing was started or written.",
            remedy="Mount it there under the same path and clear the task, which then looks again. If the home is lost, begin anew: a new "
            "run computes again what was public.",
            home=files.url,
            request=request,
        ) from error


def same_run(before: Look, now: Look) -> bool:
    """Whether nothing has happened but heartbeats and progress, which no task follows from second to second."""
    return _news(before) == _news(now)


def _news(look: Look) -> object:
    return look.at_work, look.answer, look.status and (look.status.attempt, look.status.state)


ANY_CHECKPOINT = CheckpointId(0)
"""Every checkpoint is newer."""


@dataclass(frozen=True)
class Listing:
    """The names of what a home has for those who wait: cheap to look at again and again."""

    checkpoints: tuple[CheckpointId, ...]
    """The numbers in use, ascending."""
    answers: tuple[AttemptNumber, ...]
    """Whose start requests were answered, ascending; none where nobody asks for them."""


class ListingLook:
    """Lists a home. In a home at rest a look reads a directory or two, however much there is; one thread at a time.

    Args:
        files: The home.
        answers: Whether the answers are listed, too.
    """

    def __init__(self, files: Files, *, answers: bool) -> None:
        self._channel, self._store = Channel(files) if answers else None, CheckpointStore(files)

    def __call__(self) -> Listing:
        """What is there now."""
        return Listing(tuple(self._store.taken()), tuple(self._channel.answered()) if self._channel else ())


@dataclass(frozen=True)
class WantedCheckpoint:
    """Which checkpoint is waited for."""

    final: bool
    """Only a final one."""
    run: RunId | None = None
    """Only one of this run, or the one that it was answered with: another run may have finished its round."""
    newer_than: CheckpointId = ANY_CHECKPOINT
    """Only one with a higher number."""

    @property
    def of_a_run(self) -> bool:
        """Whether it takes the answers to say which one it is."""
        return self.run is not None


class CheckpointSearch:
    """Searches a home for a checkpoint, and reads each document once: they never change. One thread at a time.

    Args:
        files: The home.
        wanted: What is searched for.
    """

    def __init__(self, files: Files, wanted: WantedCheckpoint) -> None:
        self._channel, self._store, self._wanted = Channel(files), CheckpointStore(files), wanted
        self._unwanted: set[CheckpointId] = set()
        self._read: tuple[AttemptNumber, ...] | None = None
        self._answer: StartResponse | None = None

    def find(self, listing: Listing) -> Manifest | StartResponse | None:
        """The newest checkpoint that is wanted; None while there is none. The answer of a run whose checkpoint was discarded since.

        Raises:
            StreamPipelineError: The home cannot be read, or not by this version.
        """
        if self._wanted.run is not None and listing.answers != self._read:
            self._answer, self._read = self._channel.answer(self._wanted.run), listing.answers
        for number in reversed(listing.checkpoints):
            if number <= self._wanted.newer_than:
                break
            if number in self._unwanted and not self._answers(number):
                continue
            try:
                manifest = self._store.manifest(number)
            except (CorruptDocumentError, NotFoundError):  # as everywhere, a corrupt one is none; one that is gone neither
                continue
            if self._is_wanted(manifest):
                return manifest
            self._unwanted.add(number)
        return self._answer if self._is_of_a_discarded_one(listing) else None

    def _is_of_a_discarded_one(self, listing: Listing) -> bool:
        """Whether the answer of the run names a checkpoint that is wanted, and was discarded."""
        answer = self._answer
        if answer is None or answer.error is not None or answer.checkpoint is None or answer.checkpoint in listing.checkpoints:
            return False
        return answer.checkpoint > self._wanted.newer_than and (answer.ends_round or not self._wanted.final)

    def _answers(self, number: CheckpointId) -> bool:
        return self._answer is not None and self._answer.checkpoint == number

    def _is_wanted(self, manifest: Manifest) -> bool:
        asked = self._wanted.run in (None, manifest.run) or self._answers(manifest.checkpoint)
        return asked and (manifest.ends_round or not self._wanted.final)


def find_checkpoint(files: Files, wanted: WantedCheckpoint) -> Manifest | StartResponse | None:
    """As :meth:`CheckpointSearch.find`, once."""
    return CheckpointSearch(files, wanted).find(ListingLook(files, answers=wanted.of_a_run)())


class EndLook(NamedTuple):
    """What a home shows of a cancelled attempt."""

    ended: bool
    doing: str | None
    """What the attempt at work is doing."""


def look_for_end(files: Files, cancelled: Cancelled) -> EndLook:
    """As :func:`~spark_jobs.control.cancelling.has_ended`, for who tells of the wait, too."""
    if has_ended(files, cancelled):
        return EndLook(True, None)
    status = read_status(files)
    return EndLook(False, doing(status) if status else None)
