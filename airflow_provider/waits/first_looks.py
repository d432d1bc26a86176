"""The first look of a task at a home, and the decision that follows from it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent
from spark_jobs.control.liveness import claimed_by_another, driver_at_work
from spark_jobs.protocol.documents import AttemptDocument, StartResponse
from spark_jobs.protocol.errors import HomeInUseError
from spark_jobs.protocol.ids import RunId
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files


class Next(Enum):
    """The action of a task after its first look at a home."""

    RETURN = "return"
    """Return the answer: the run was answered without an error."""
    ADOPT = "adopt"
    """Wait for the driver that works on this run."""
    AWAIT = "await"
    """Wait for the driver that was requested for this run and may still be starting."""
    AWAIT_END = "await_end"
    """Look again: the driver has answered and is about to end."""
    START = "start"
    """Request a start and start a driver."""
    FAIL = "fail"
    """Fail: a driver works on another run, or was requested for it."""


@dataclass(frozen=True)
class FirstLook:
    """The state of a home before anything is requested."""

    answer: StartResponse | None
    """The newest answer for this run."""
    live: AttemptDocument | None
    """The newest attempt of any run."""
    live_answered: bool
    """True if the start request of that attempt has an answer. The answer may be an error."""
    at_work: bool
    """True if a driver works in the home. It may not have begun its attempt yet."""
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
        return Next.ADOPT if look.live.run == run else Next.FAIL
    if look.starting is not None:
        return Next.AWAIT if look.starting.run == run else Next.FAIL
    return Next.AWAIT_END if works else Next.START


def first_look(files: Files, run: RunId, start_timeout_s: float | None) -> FirstLook:
    """Looks at a home before anything is requested. Writes nothing.

    Args:
        files: The home.
        run: The run.
        start_timeout_s: How long a driver may wait in a cluster's queue; None: drivers are processes of this host.
    """
    channel = Channel(files)
    at_work = driver_at_work(files)  # read before the answers, because a driver answers before it ends
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
    if request is None:
        return None
    if AttemptLease(channel.files, request.attempt).decide(LeaseEvent.ATTEMPT_CONTINUES).action is LeaseAction.END:
        return None
    return request if (datetime.now(UTC) - request.requested_at).total_seconds() < start_timeout_s else None


def in_use(home: str, look: FirstLook) -> HomeInUseError:
    """Returns the error for a home in which a driver works on another run, or was requested for it."""
    works = look.at_work and not look.live_answered
    other = look.live if works or look.starting is None else look.starting
    assert other is not None
    attempt, run = other.attempt, other.run
    return HomeInUseError(
        f"{home} is in use: attempt {attempt} is {'at work' if works else 'asked for'}, for the run {run}.",
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
        remedy="End that process and its Java process; then start again.",
        home=home,
        attempt=live.attempt,
        host=live.host,
        process=live.process,
    )
