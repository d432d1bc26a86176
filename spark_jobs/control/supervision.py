"""Decides what follows when the driver of a pipeline with a restart strategy is gone: another attempt, or an error.

Invariants:

1. The decision depends on documents that never change: the attempt's has the strategy, its request the strategy's history, and its answer
   the time and the error. So all workers and triggerers make the same decision, including the jitter, at any time.
2. A lost driver leaves no answer. The process that notices it writes the answer, once, and cancels the driver in case it still runs.
3. A start that the strategy has decided says so in its request. Every other start was requested, and failures are counted from zero.
"""

import random
from dataclasses import dataclass

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, Retry, StorageError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.protocol.reports import report_error, reported_error
from spark_jobs.protocol.restart_settings import RestartSettings
from spark_jobs.protocol.restarts import Exhausted, RestartHistory, after_failure, exhausted, may_heal
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class Restart:
    """A start that the restart strategy has decided."""

    after: AttemptNumber
    """The attempt that failed."""
    history: RestartHistory
    """The history of the strategy from now on."""
    due_at: float
    """The earliest time, in seconds since 1970."""

    def __str__(self) -> str:
        return f"restart {self.history.restarts} by the pipeline's strategy"


@dataclass(frozen=True)
class End:
    """The end of the attempts: no restart can heal the error, the strategy allows no more, or the pipeline was cancelled."""

    error: StreamPipelineError
    """The error of the task."""


def decided(request: StartRequest, answer: StartResponse, strategy: RestartSettings) -> Restart | End:
    """Returns the decision after a failed attempt. It is a pure function of the attempt's documents.

    Args:
        request: Start request of the attempt.
        answer: Its answer.
        strategy: Strategy of the attempt.
    """
    assert answer.error is not None
    error = reported_error(answer.error)
    if not may_heal(error) or answer.error.retry == Retry.NEVER.value:  # also if a newer version has written the error
        return End(error)
    history, chance = request.restarts or RestartHistory(), random.Random(f"{request.run} {request.attempt}")
    failed_ms = int(answer.answered_at.timestamp() * 1000)
    if history.restart_at_ms is not None:  # it began no earlier, even if the host's clock says so
        failed_ms = max(failed_ms, history.restart_at_ms + 1)
    history, decision = after_failure(strategy, history, failed_ms, chance)
    if isinstance(decision, Exhausted):
        return End(exhausted(decision, error))
    return Restart(request.attempt, history, failed_ms / 1000 + decision.delay_s)


def is_error_of_wait(answer: StartResponse | None, error: StreamPipelineError) -> bool:
    """Returns True if a wait itself has failed, not its attempt. Then a driver may be at work."""
    return isinstance(error, DeadlineExceededError | StorageError) and (answer is None or answer.error != report_error(error))


def after_end(
    files: Files, attempt: AttemptNumber, owner: OwnerNumber | None, error: StreamPipelineError
) -> Restart | End | None:
    """Returns the decision after a wait for an attempt. Answers for a lost driver. Idempotent, durable on return.

    Args:
        files: The home.
        attempt: The attempt that was waited for.
        owner: Owner that has waited; None: there is no other owner.
        error: Error of the wait.

    Returns:
        None if no strategy decides: all inputs of the pipeline end, no attempt of the run has begun, the driver may be at work, or the
        attempt has another owner.
    """
    channel = Channel(files)
    request = channel.request(start_request_id(attempt))
    strategy = _strategy(channel, request)
    if strategy is None:
        return None
    answer = channel.response(request.request)
    if is_error_of_wait(answer, error) and (answer is None or isinstance(error, DeadlineExceededError)):
        return None  # the next wait decides what follows from the attempt
    if answer is None and not may_heal(error):  # it has only left its exit code
        return End(error)
    if answer is None:
        answer = _answer_for_lost(channel, request, owner, error)
    return None if answer is None or answer.error is None else decided(request, answer, strategy)


def next_start(files: Files, run: RunId) -> Restart | None:
    """Returns the strategy's decision for a run whose driver is gone, from the documents of earlier tries.

    Returns:
        None if no restart is due. The run is new, was cancelled, or has ended permanently.
    """
    channel = Channel(files)
    request = channel.newest_request(run)
    if request is None:
        return None
    answer = channel.response(request.request)
    if answer is not None:
        if AttemptLease(files, request.attempt).decide(LeaseEvent.RUN_CONTINUES).action is LeaseAction.END:
            return None
        following = after_end(files, request.attempt, None, reported_error(answer.error)) if answer.error else None
        return following if isinstance(following, Restart) else None
    if request.attempt not in channel.attempts.numbers():  # requested, but not begun
        return None if request.restarts is None else Restart(request.attempt, request.restarts, 0.0)
    lost = InterruptedRunError(
        f"The driver for {request.request} in {files.url} was lost while no task waited for it.",
        remedy="Do nothing: the next attempt continues from the durable state.",
        home=files.url,
        request=request.request,
    )
    following = after_end(files, request.attempt, None, lost)
    return following if isinstance(following, Restart) else None


def goes_on(files: Files) -> bool:
    """Returns True if a driver holds a home, or one will start by itself: its driver was lost, or a restart is due later. Only reads."""
    if driver_at_work(files):
        return True
    channel = Channel(files)
    unclaimed = channel.unclaimed()
    newest = channel.newest()
    if unclaimed is not None and unclaimed.restarts is not None:
        newest = unclaimed.attempt
    if newest is None:
        return False
    request = channel.request(start_request_id(newest))
    answer = channel.response(request.request)
    if answer is None:
        return AttemptLease(files, newest).decide(LeaseEvent.ATTEMPT_CONTINUES).action is LeaseAction.CONTINUE
    strategy = _strategy(channel, request)
    if answer.error is None or strategy is None or is_cancelled_after(files, answer):
        return False
    return isinstance(decided(request, answer, strategy), Restart)


def is_cancelled_after(files: Files, answer: StartResponse) -> bool:
    """Returns True if an attempt got a new owner after its failure, which has cancelled it, so that no restart follows.

    An earlier owner only cancels a driver that seemed to be lost.
    """
    decision = AttemptLease(files, answer.attempt).decide(LeaseEvent.ATTEMPT_CONTINUES)
    is_newer = decision.newest is not None and decision.newest.since > answer.answered_at
    return is_newer and decision.action is LeaseAction.END


def answer_for_unstarted(
    files: Files, attempt: AttemptNumber, error: StreamPipelineError, owner: OwnerNumber | None = None
) -> None:
    """Answers the start request of an attempt whose driver has not begun. A driver that begins later ends by itself.

    Does nothing if the driver has begun, or if another owner has taken the attempt.

    Args:
        files: The home.
        attempt: The attempt.
        error: The answer.
        owner: Owner that has waited; None: none has.
    """
    channel, lease = Channel(files), AttemptLease(files, attempt)
    decision = lease.decide(LeaseEvent.DRIVER_HAS_NOT_BEGUN, owner)
    if attempt in channel.attempts.numbers() or decision.action is not LeaseAction.ANSWER:
        return
    if decision.newest is not None:  # for a driver that begins right now and has not seen the answer
        lease.cancel(decision.newest.owner, "its driver had not begun in time")
    channel.respond_failure(channel.request(start_request_id(attempt)), error)


def _strategy(channel: Channel, request: StartRequest) -> RestartSettings | None:
    """Returns the strategy for a start: that of its attempt, or of the attempt before if it has not begun."""
    begun = [number for number in channel.attempts.numbers() if number <= request.attempt]
    if not begun:
        return None
    attempt = channel.attempts.read(begun[-1])
    return attempt.restart if attempt.run == request.run else None


def _answer_for_lost(
    channel: Channel, request: StartRequest, owner: OwnerNumber | None, error: StreamPipelineError
) -> StartResponse | None:
    """Answers for a driver that is gone, and returns the answer, or None if it was cancelled or has another owner."""
    lease = AttemptLease(channel.files, request.attempt)
    if lease.decide(LeaseEvent.DRIVER_IS_GONE, owner).action is not LeaseAction.ANSWER:
        return None
    answer = channel.respond_failure(request, error)
    # The cancel follows the answer, because a running driver must not report its loss as a cancel. There may be a new owner by now.
    newest = lease.newest()
    if newest is not None:
        lease.cancel(newest.owner, "it seemed to be lost, and the next attempt does its work")
    return answer
