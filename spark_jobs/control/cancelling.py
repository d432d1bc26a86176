"""Cancels a pipeline's driver on behalf of a user who has not started it.

Invariants:

1. The canceller first becomes the owner of the attempt, with a token that is the same in every try. So the next try finds the attempt that
   the earlier one has cancelled, and cancels no attempt that was begun since.
2. A cancelled attempt whose driver is gone without an answer gets an answer, so that its driver does not count as lost.
3. A restart that the pipeline's strategy has decided before it could know of the cancel is cancelled, too.
4. While a driver is at work, its attempt is cancelled, even if a later start is open because its own driver has found the home in use.
   That start is cancelled, too.
"""

from contextlib import suppress
from dataclasses import dataclass

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import CANCELLER, AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent
from spark_jobs.control.liveness import claimed_request, driver_at_work
from spark_jobs.control.supervision import Restart, after_end, is_cancelled_after
from spark_jobs.home.layout import REQUESTS, request_of
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import (
    ConflictError,
    InterruptedRunError,
    NotFoundError,
    Retry,
    RunCancelledError,
)
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, cancel_request_id, start_request_id
from spark_jobs.protocol.reports import reported_error
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class Cancelled:
    """An attempt that was cancelled, and the owner that did it."""

    attempt: AttemptNumber
    owner: OwnerNumber


def cancel_newest(files: Files, token: str, reason: str) -> Cancelled | None:
    """Cancels the attempt at work, or the newest one, durably. Idempotent.

    An attempt that has ended is cancelled, too, if another would follow it: by a restart of the pipeline's strategy, or by the next try of
    a task whose run has failed.

    Args:
        files: Files of the home.
        token: Token of the canceller, the same in every try.
        reason: Reason for the processes that wait for the attempt.

    Returns:
        None if there was nothing to cancel: nothing runs, and nothing follows.
    """
    channel, token = Channel(files), CANCELLER + token
    unclaimed = channel.unclaimed()
    newest = _at_work(channel) or unclaimed or _newest_request(channel)
    if newest is None:
        return None
    before = _cancelled_before(channel, newest.attempt, token)
    if before is not None and not _is_its_restart(channel, before, newest):
        return before
    answer = channel.response(newest.request)
    if answer is not None and not _is_followed(files, answer):
        return None
    if unclaimed is not None and unclaimed != newest:  # with another owner, so that a next try finds the attempt at work
        _cancel(channel, unclaimed, f"{token}, besides", reason)
    return _cancel(channel, newest, token, reason)


def cancelled_by_user(files: Files, run: RunId) -> RunCancelledError | None:
    """Returns the error for a run that was cancelled with :func:`cancel_newest` and has no new start or owner since.

    Returns:
        The error. None if there is no such cancel, or if the run ended successfully before the cancel reached it.
    """
    channel = Channel(files)
    request = channel.newest_request(run)
    if request is None:
        return None
    decision = AttemptLease(files, request.attempt).decide(LeaseEvent.RUN_CONTINUES)
    answer = channel.response(request.request)
    if decision.action is not LeaseAction.END or (answer is not None and answer.error is None):
        return None
    assert decision.cancel is not None
    return _cancelled(request, decision.cancel.reason, decision.cancel.owner)


def has_ended(files: Files, cancelled: Cancelled) -> bool:
    """Returns True if the driver of a cancelled attempt has ended. Answers for a driver that is gone without an answer.

    Raises:
        ConflictError: The attempt has another owner since, and its driver goes on.
    """
    channel, lease = Channel(files), AttemptLease(files, cancelled.attempt)
    if driver_at_work(files) and max(channel.attempts.numbers(), default=cancelled.attempt) <= cancelled.attempt:
        decision = lease.decide(LeaseEvent.CANCEL_WAITS, cancelled.owner)
        if decision.action is LeaseAction.REPORT and channel.response(start_request_id(cancelled.attempt)) is None:
            raise ConflictError(
                f"Another process has taken over attempt {cancelled.attempt} in {files.url} since it was cancelled.",
                exists="Its driver is at work.",
                safe="Nothing was lost.",
                remedy="Cancel it again. Check its supervisor: a task was cleared or retried.",
                home=files.url,
                attempt=cancelled.attempt,
            )
        return False
    if channel.response(start_request_id(cancelled.attempt)) is None:
        try:
            request = channel.request(start_request_id(cancelled.attempt))
        except NotFoundError:  # deleted since, with its answer; see outcome_of
            return True
        asked = lease.cancelled()
        channel.respond_failure(request, _cancelled(request, asked.reason if asked else "", cancelled.owner))
    return True


def outcome_of(files: Files, cancelled: Cancelled) -> StartResponse:
    """Returns the answer of a cancelled attempt after :func:`has_ended`: an error, unless it ended before the cancel reached it.

    Raises:
        InterruptedRunError: The home does not have the answer any more.
    """
    answer = Channel(files).response(start_request_id(cancelled.attempt))
    if answer is None:
        raise InterruptedRunError(
            f"Attempt {cancelled.attempt} in {files.url} no longer has an answer.",
            safe="Nothing was changed.",
            exists="It was deleted after many later starts, or the home was created again.",
            remedy="Cancel again.",
            home=files.url,
            attempt=cancelled.attempt,
        )
    return answer


def _at_work(channel: Channel) -> StartRequest | None:
    """Returns the start request of the driver at work, or None if none is at work or it has answered."""
    files, live = channel.files, channel.attempts.latest()
    working = claimed_request(files) or (live.request if live is not None and driver_at_work(files) else None)
    if working is None or channel.response(working) is not None:
        return None
    with suppress(NotFoundError):  # a driver of a home that was created again
        return channel.request(working)
    return None


def _newest_request(channel: Channel) -> StartRequest | None:
    """Returns the start request of the newest attempt, whether or not it has begun."""
    newest = channel.newest()
    return None if newest is None else channel.request(start_request_id(newest))


def _cancel(channel: Channel, request: StartRequest, token: str, reason: str) -> Cancelled:
    """Becomes the owner of an attempt and cancels it. Answers for one that has not begun."""
    lease = AttemptLease(channel.files, request.attempt)
    owner = lease.take(token).owner
    lease.cancel(owner, reason)
    if request.attempt not in channel.attempts.numbers():  # a driver that begins later ends by itself
        channel.respond_failure(request, _cancelled(request, reason, owner))
    return Cancelled(request.attempt, owner)


def _is_followed(files: Files, answer: StartResponse) -> bool:
    """Returns True if another attempt may follow an answered one without a new request."""
    if answer.error is None or is_cancelled_after(files, answer):
        return False
    following = after_end(files, answer.attempt, None, reported_error(answer.error))
    if following is None:  # there is no strategy, but the requester of the run may try it again
        lease = AttemptLease(files, answer.attempt)
        return answer.error.retry != Retry.NEVER.value and lease.decide(LeaseEvent.RUN_CONTINUES).action is LeaseAction.CONTINUE
    return isinstance(following, Restart)


def _cancelled_before(channel: Channel, newest: AttemptNumber, token: str) -> Cancelled | None:
    """Returns the attempt that an earlier try has cancelled."""
    asked = set(map(request_of, channel.files.names(REQUESTS)))
    owners = channel.attempts.names().owners
    for number in sorted((number for number in owners if number <= newest), reverse=True):
        if cancel_request_id(number, owners[number]) in asked:
            owner = AttemptLease(channel.files, number).newest()
            if owner is not None and owner.token == token:
                return Cancelled(number, owner.owner)
    return None


def _is_its_restart(channel: Channel, cancelled: Cancelled, newest: StartRequest) -> bool:
    """Returns True if the newest start only follows the cancelled one by the pipeline's strategy."""
    run = channel.request(start_request_id(cancelled.attempt)).run
    return newest.attempt > cancelled.attempt and newest.restarts is not None and newest.run == run


def _cancelled(request: StartRequest, reason: str, owner: OwnerNumber) -> RunCancelledError:
    return RunCancelledError(
        f"Attempt {request.attempt} was cancelled: {reason}.",
        exists="Staged batches and complete checkpoints stay.",
        safe="Only rows of complete checkpoints were published.",
        remedy="Run it again to go on from there.",
        attempt=request.attempt,
        owner=owner,
    )
