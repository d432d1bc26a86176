"""Decides what follows when the driver of a pipeline with a restart strategy is gone: the next attempt when the strategy says, or an error.

Invariants:

1. It is decided by documents that never change: the attempt's says which strategy, its request what the strategy remembers, its answer
   when it failed and how. So every worker and every triggerer comes to the same decision, jitter included, whenever it looks.
2. A lost driver leaves no answer. Whoever notices answers for it, once, and asks it to end in case it still lives.
3. A start on which the strategy has decided says so in its request. Any other one is somebody's wish: failures are counted anew.
"""

import random
from dataclasses import dataclass

from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.owners import Owners
from spark_jobs.protocol.documents import StartRequest, StartResponse
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, Retry, StorageError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.protocol.reports import report_error, reported_error
from spark_jobs.protocol.restart_settings import RestartSettings
from spark_jobs.protocol.restarts import Exhausted, RestartHistory, after_failure, exhausted, may_heal
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class Restart:
    """A start on which the restart strategy has decided."""

    after: AttemptNumber
    """The attempt that failed."""
    history: RestartHistory
    """The memory of the strategy from now on."""
    due_at: float
    """Not before, in seconds since 1970."""

    def __str__(self) -> str:
        return f"restart {self.history.restarts} by the pipeline's strategy"


@dataclass(frozen=True)
class End:
    """No attempt follows by itself: no restart can heal, the strategy allows no more, or somebody has cancelled the pipeline."""

    error: StreamPipelineError
    """The error that the task ends with."""


def decided(request: StartRequest, answer: StartResponse, strategy: RestartSettings) -> Restart | End:
    """Returns what follows from an attempt that failed: a pure function of its documents.

    Args:
        request: What the attempt was started for.
        answer: How it failed.
        strategy: The pipeline's, as the attempt has it.
    """
    assert answer.error is not None
    error = reported_error(answer.error)
    if not may_heal(error) or answer.error.retry == Retry.NEVER.value:  # also where a newer version has named the error
        return End(error)
    history, chance = request.restarts or RestartHistory(), random.Random(f"{request.run} {request.attempt}")
    failed_ms = int(answer.answered_at.timestamp() * 1000)
    if history.restart_at_ms is not None:  # it began no earlier, whatever the clock of its host says
        failed_ms = max(failed_ms, history.restart_at_ms + 1)
    history, decision = after_failure(strategy, history, failed_ms, chance)
    if isinstance(decision, Exhausted):
        return End(exhausted(decision, error))
    return Restart(request.attempt, history, failed_ms / 1000 + decision.delay_s)


def is_of_the_wait(answer: StartResponse | None, error: StreamPipelineError) -> bool:
    """Returns whether a wait has failed by itself, not with the answer of its attempt: a driver may be at work."""
    return isinstance(error, DeadlineExceededError | StorageError) and (answer is None or answer.error != report_error(error))


def after_end(
    files: Files, attempt: AttemptNumber, owner: OwnerNumber | None, error: StreamPipelineError
) -> Restart | End | None:
    """Returns what follows from the end of a wait for an attempt; answers for a driver that was lost. Idempotent, durable on return.

    Args:
        files: The home.
        attempt: What was waited for.
        owner: As whom; None: nobody else is there.
        error: What the wait has ended with.

    Returns:
        None where no strategy has a say: the inputs of the pipeline all end, no attempt of the run has begun, the driver may be at work, or
        somebody else has charge of it.
    """
    channel = Channel(files)
    request = channel.request(start_request_id(attempt))
    strategy = _strategy(channel, request)
    if strategy is None:
        return None
    answer = channel.response(request.request)
    if is_of_the_wait(answer, error) and (answer is None or isinstance(error, DeadlineExceededError)):
        return None  # what follows from the attempt is for the next wait
    if answer is None and not may_heal(error):  # it has left no more than its exit code
        return End(error)
    if answer is None:
        answer = _answer_for_lost(channel, request, owner, error)
    return None if answer is None or answer.error is None else decided(request, answer, strategy)


def next_start(files: Files, run: RunId) -> Restart | None:
    """Returns what the strategy has decided for a run whose driver is gone, from what an earlier try has left.

    Returns:
        None: no restart is due. A start is then somebody's wish: the run is new, was cancelled, or has ended for good.
    """
    channel = Channel(files)
    request = channel.newest_request(run)
    if request is None:
        return None
    answer = channel.response(request.request)
    if answer is not None and Owners(files, request.attempt).called_off() is not None:
        return None
    if answer is not None:
        following = after_end(files, request.attempt, None, reported_error(answer.error)) if answer.error else None
        return following if isinstance(following, Restart) else None
    if request.attempt not in channel.attempts.numbers():  # asked for, and nobody has begun it
        return None if request.restarts is None else Restart(request.attempt, request.restarts, 0.0)
    lost = InterruptedRunError(
        f"The driver for {request.request} in {files.url} was lost while no task waited for it.",
        safe="Completed checkpoints, and what was published, stay.",
        remedy="None is needed: the next attempt goes on from what is durable.",
        home=files.url,
        request=request.request,
    )
    following = after_end(files, request.attempt, None, lost)
    return following if isinstance(following, Restart) else None


def goes_on(files: Files) -> bool:
    """Returns whether a driver holds a home, or one follows by itself: its driver was lost, or its restart is due later. Only reads."""
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
        return Owners(files, newest).cancelled() is None
    strategy = _strategy(channel, request)
    if answer.error is None or strategy is None or is_called_off(files, answer):
        return False
    return isinstance(decided(request, answer, strategy), Restart)


def is_called_off(files: Files, answer: StartResponse) -> bool:
    """Returns whether somebody has taken charge of an attempt after its failure and cancelled it, so that no restart follows.

    Who had charge of it before cancels no more than a driver that was taken for lost.
    """
    owners = Owners(files, answer.attempt)
    newest = owners.newest()
    return newest is not None and newest.since > answer.answered_at and owners.cancelled() is not None


def _strategy(channel: Channel, request: StartRequest) -> RestartSettings | None:
    """Returns the strategy that counts for a start: that of its attempt, or of the attempt before if it has not begun."""
    begun = [number for number in channel.attempts.numbers() if number <= request.attempt]
    if not begun:
        return None
    attempt = channel.attempts.read(begun[-1])
    return attempt.restart if attempt.run == request.run else None


def _answer_for_lost(
    channel: Channel, request: StartRequest, owner: OwnerNumber | None, error: StreamPipelineError
) -> StartResponse | None:
    """Answers for a driver that is gone, and returns the answer; None if its end was asked for, or another has charge of it."""
    owners = Owners(channel.files, request.attempt)
    newest = owners.newest()
    if newest is not None:
        cancelled = owners.cancelled() is not None or owners.was_cancelled_before(newest.owner)
        if cancelled or owner not in (None, newest.owner):
            return None
    answer = channel.respond_failure(request, error)
    newest = (
        owners.newest()
    )  # somebody may have taken charge since; and after the answer, as a driver that lives must not call its loss a cancel
    if newest is not None:
        owners.cancel(newest.owner, "it was taken for lost, and the next attempt does its work")
    return answer
