"""Ends a pipeline's driver on behalf of a task that is not its own.

Invariants:

1. Who cancels takes charge of the attempt first, with a token that is the same in every try. So a next try finds what the one before has
   cancelled, and cancels no attempt that somebody has begun since.
2. A cancelled attempt whose driver is gone without an answer is answered as cancelled: nobody takes its driver for lost.
3. A restart that the pipeline's strategy has decided on before it could know of the cancel is cancelled, too.
"""

from dataclasses import dataclass
from typing import Any

from airflow_provider.pipeline_states import newest_checkpoint
from airflow_provider.supervision import Restart, after_end
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.owners import Owners
from spark_jobs.protocol.documents import StartRequest, StartResponse
from spark_jobs.protocol.errors import ConflictError, DeadlineExceededError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, start_request_id
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class Cancelled:
    """An attempt that was asked to end, and as whom."""

    attempt: AttemptNumber
    owner: OwnerNumber


def cancel_newest(files: Files, token: str, reason: str) -> Cancelled | None:
    """Asks for the end of the newest attempt, durably; idempotent.

    One that has ended, but is followed by a restart unless somebody says otherwise, is cancelled, too.

    Args:
        files: The home.
        token: Who asks; the same in every try.
        reason: For whoever waits for the attempt.

    Returns:
        None where nothing was asked for: nothing runs, and nothing follows.
    """
    channel = Channel(files)
    newest = _newest_request(channel)
    if newest is None:
        return None
    before = _cancelled_before(channel, newest.attempt, token)
    if before is not None and not _is_its_restart(channel, before, newest):
        return before
    answer = channel.response(newest.request)
    if answer is not None and not _is_restarted(files, answer):
        return None
    owners = Owners(files, newest.attempt)
    owner = owners.take_charge(token).owner
    owners.cancel(owner, reason)
    if newest.attempt not in channel.attempts.numbers():  # a driver that begins after this ends by itself
        channel.respond_failure(newest, _cancelled(newest, reason, owner))
    return Cancelled(newest.attempt, owner)


def has_ended(files: Files, cancelled: Cancelled) -> bool:
    """Whether the driver of a cancelled attempt has; answers for one that is gone without an answer.

    Raises:
        ConflictError: Somebody has taken charge of the attempt since, and its driver goes on.
    """
    channel, owners = Channel(files), Owners(files, cancelled.attempt)
    if driver_at_work(files) and max(channel.attempts.numbers(), default=cancelled.attempt) <= cancelled.attempt:
        newest = owners.newest()
        unanswered = channel.response(start_request_id(cancelled.attempt)) is None
        if unanswered and newest is not None and newest.owner > cancelled.owner:
            raise ConflictError(
                f"Somebody has taken charge of attempt {cancelled.attempt} in {files.url} since it was cancelled.",
                exists="Its driver is at work.",
                safe="Nothing was lost.",
                remedy="A retry cancels it again. See which task supervises it, and was cleared or retried.",
                home=files.url,
                attempt=cancelled.attempt,
            )
        return False
    request = channel.request(start_request_id(cancelled.attempt))
    if channel.response(request.request) is None:
        asked = owners.cancelled()
        channel.respond_failure(request, _cancelled(request, asked.reason if asked else "", cancelled.owner))
    return True


def cancel_facts(files: Files, cancelled: Cancelled | None) -> dict[str, Any]:
    """What a cancel has come to.

    Returns:
        ``home``, ``attempt`` and ``run`` (None where nothing ran), ``cancelled``: whether the attempt was ended, or its restart
        was prevented, and the newest complete ``checkpoint`` of the home, or None.
    """
    request = None if cancelled is None else Channel(files).request(start_request_id(cancelled.attempt))
    answer = None if request is None else Channel(files).response(request.request)
    return {
        "home": files.url,
        "attempt": request and request.attempt,
        "run": request and request.run,
        "cancelled": answer is not None and answer.error is not None,
        "checkpoint": newest_checkpoint(files),
    }


def too_late(files: Files, cancelled: Cancelled, timeout_s: float | None) -> DeadlineExceededError:
    """That the driver of a cancelled attempt has not ended in time."""
    return DeadlineExceededError(
        f"The driver of attempt {cancelled.attempt} in {files.url} has not ended within {timeout_s or 0.0:g} s of its cancel.",
        exists="The cancel stays: it ends as soon as it can.",
        safe="Nothing was lost.",
        remedy="See its log; a retry of this task waits on. A process that hears nothing has to be ended on its host.",
        home=files.url,
        attempt=cancelled.attempt,
    )


def _newest_request(channel: Channel) -> StartRequest | None:
    """What the newest attempt was, or is to be, started for."""
    unclaimed = channel.unclaimed()
    if unclaimed is not None:
        return unclaimed
    newest = max([*channel.attempts.numbers(), *channel.answered()], default=None)
    return None if newest is None else channel.request(start_request_id(newest))


def _is_restarted(files: Files, answer: StartResponse) -> bool:
    """Whether the pipeline's strategy lets another attempt follow an answered one."""
    if answer.error is None:
        return False
    return isinstance(after_end(files, answer.attempt, None, reported_error(answer.error)), Restart)


def _cancelled_before(channel: Channel, newest: AttemptNumber, token: str) -> Cancelled | None:
    """What an earlier try has cancelled."""
    for number in range(newest, 0, -1):
        owners = Owners(channel.files, AttemptNumber(number))
        owner = owners.newest()
        if owner is not None and owner.token == token and owners.cancelled() is not None:
            return Cancelled(AttemptNumber(number), owner.owner)
    return None


def _is_its_restart(channel: Channel, cancelled: Cancelled, newest: StartRequest) -> bool:
    """Whether the newest start only follows the cancelled one by the pipeline's strategy."""
    run = channel.request(start_request_id(cancelled.attempt)).run
    return newest.attempt > cancelled.attempt and newest.restarts is not None and newest.run == run


def _cancelled(request: StartRequest, reason: str, owner: OwnerNumber) -> RunCancelledError:
    return RunCancelledError(
        f"Attempt {request.attempt} was cancelled: {reason}.",
        exists="Batches that were staged, and complete checkpoints, stay.",
        safe="Nothing was published that is not in a complete checkpoint.",
        remedy="Run it again to go on from there.",
        attempt=request.attempt,
        owner=owner,
    )
