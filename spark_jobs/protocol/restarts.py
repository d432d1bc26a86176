"""Decides whether and when a failed pipeline is started again. Time, chance and history are arguments.

The formulas are Flink's. One rule is wider: Flink merges failures during a pending restart only for ``exponential-delay``. Here every
strategy does, because one cause (a host, a full disk) ends several stages at once.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.errors import FencedError, RestartsExhaustedError, Retry, RunCancelledError, StreamPipelineError
from spark_jobs.protocol.restart_settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartSettings

_MOST_MS = 2**62
"""A backoff that has overflowed. It is far above what any setting allows."""


class RestartHistory(Part):
    """The failures that a strategy remembers. An empty history means that there was none."""

    restarts: int = 0
    """Number of restarts; with ``exponential-delay`` since the backoff was reset."""
    failures_ms: tuple[int, ...] = ()
    """Times of the last failures that led to a restart, in milliseconds since 1970, as many as the strategy needs."""
    restart_at_ms: int | None = None
    """Time at which the restart after the last of them was due. None: there was none, or the strategy was exhausted."""


@dataclass(frozen=True)
class RestartIn:
    """The pipeline is started again."""

    delay_s: float
    """Seconds from now."""
    merged: bool
    """True if the restart was already pending."""


@dataclass(frozen=True)
class Exhausted:
    """The strategy allows no more restarts."""

    reason: str
    """The reason, in one sentence."""


def may_heal(error: BaseException) -> bool:
    """Returns True if a restart may help after a failure.

    It does not help if the failure would repeat, if the pipeline was cancelled, or if another attempt is live.
    """
    if isinstance(error, FencedError | RunCancelledError):
        return False
    return not (isinstance(error, StreamPipelineError) and error.retry is Retry.NEVER)


def exhausted(decision: Exhausted, last: BaseException) -> RestartsExhaustedError:
    """Returns the error for a pipeline whose strategy allows no more restarts.

    Args:
        decision: The reason.
        last: The last failure.
    """
    failed, exists, safe = str(last).strip(), "", ""
    if isinstance(last, StreamPipelineError):
        failed, exists, safe = last.failed, last.exists, last.safe
    return RestartsExhaustedError(
        f"{decision.reason} The last failure was {type(last).__name__}: {failed}",
        exists=exists,
        safe=safe or None,
        remedy="Remove the cause and start the pipeline again, in Airflow by clearing the task. The count of restarts begins at zero.",
        last=type(last).__name__,
    )


def after_failure(
    settings: RestartSettings, history: RestartHistory, now_ms: int, chance: random.Random, *, progressed: bool = True
) -> tuple[RestartHistory, RestartIn | Exhausted]:
    """Returns the decision after a failure.

    Args:
        settings: The strategy.
        history: Earlier failures.
        now_ms: Time of the failure, in milliseconds since 1970. The clock may be set back.
        chance: Draws the jitter.
        progressed: True if a batch was completed since the failure before. Without one the backoff is never reset: otherwise a batch
            that fails after hours would be tried for ever.

    Returns:
        The new history, and the decision.
    """
    pending_ms = history.restart_at_ms
    if pending_ms is not None and history.failures_ms[-1] <= now_ms <= pending_ms:
        return history, RestartIn((pending_ms - now_ms) / 1000, merged=True)
    match settings:
        case NoRestart():
            return _exhausted(history, "The restart strategy is none.")
        case FixedDelay():
            return _fixed_delay(settings, history, now_ms)
        case FailureRate():
            return _failure_rate(settings, history, now_ms)
        case ExponentialDelay():
            return _exponential_delay(settings, history, now_ms, chance, progressed=progressed)


class Restarts:
    """The failures of one stage.

    Args:
        settings: The strategy.
        clock: Seconds since 1970.
        chance: Draws the jitter.
        history: History of an earlier process.
    """

    def __init__(
        self,
        settings: RestartSettings,
        clock: Callable[[], float],
        chance: random.Random,
        history: RestartHistory | None = None,
    ) -> None:
        self.settings = settings
        self.history = history or RestartHistory()
        self._clock, self._chance = clock, chance

    def failed(self, *, progressed: bool = True) -> RestartIn | Exhausted:
        """Counts a failure that happens now, and returns the decision; see :func:`after_failure`."""
        now_ms = int(self._clock() * 1000)
        self.history, decision = after_failure(self.settings, self.history, now_ms, self._chance, progressed=progressed)
        return decision


def _fixed_delay(settings: FixedDelay, history: RestartHistory, now_ms: int) -> tuple[RestartHistory, RestartIn | Exhausted]:
    if history.restarts >= settings.attempts:
        return _exhausted(history, f"The restart strategy fixed-delay allows {_times(settings.attempts)}.")
    return _restart(history.restarts + 1, (now_ms,), now_ms, settings.delay_ms)


def _failure_rate(settings: FailureRate, history: RestartHistory, now_ms: int) -> tuple[RestartHistory, RestartIn | Exhausted]:
    most = settings.max_failures_per_interval
    failures_ms = (*history.failures_ms[-most:], now_ms)
    if len(failures_ms) > most and now_ms - failures_ms[0] <= settings.failure_rate_interval_ms:
        interval = f"{settings.failure_rate_interval_ms / 1000:g} s"
        return _exhausted(history, f"The restart strategy failure-rate allows {most} failures in {interval}.")
    return _restart(history.restarts + 1, failures_ms, now_ms, settings.delay_ms)


def _exponential_delay(
    settings: ExponentialDelay, history: RestartHistory, now_ms: int, chance: random.Random, *, progressed: bool
) -> tuple[RestartHistory, RestartIn | Exhausted]:
    calm = history.restart_at_ms is not None and now_ms - history.restart_at_ms >= settings.reset_backoff_threshold_ms
    restarts = 0 if calm and progressed else history.restarts
    most = settings.attempts_before_reset_backoff
    if most is not None and restarts >= most:
        return _exhausted(history, f"The restart strategy exponential-delay allows {_times(most)} in a row.")
    return _restart(restarts + 1, (now_ms,), now_ms, _backoff_ms(settings, restarts, chance))


def _backoff_ms(settings: ExponentialDelay, restarts: int, chance: random.Random) -> int:
    """Returns max(initial, min(initial · multiplier^restarts ± jitter, max))."""
    try:
        backoff_ms = min(int(settings.initial_backoff_ms * settings.backoff_multiplier**restarts), _MOST_MS)
    except OverflowError:
        backoff_ms = _MOST_MS
    jitter_ms = int(backoff_ms * settings.jitter_factor)
    drawn_ms = backoff_ms + chance.randint(-jitter_ms, jitter_ms)
    return max(settings.initial_backoff_ms, min(drawn_ms, settings.max_backoff_ms))


def _restart(restarts: int, failures_ms: tuple[int, ...], now_ms: int, delay_ms: int) -> tuple[RestartHistory, RestartIn]:
    history = RestartHistory(restarts=restarts, failures_ms=failures_ms, restart_at_ms=now_ms + delay_ms)
    return history, RestartIn(delay_ms / 1000, merged=False)


def _exhausted(history: RestartHistory, reason: str) -> tuple[RestartHistory, Exhausted]:
    return history.model_copy(update={"restart_at_ms": None}), Exhausted(reason)


def _times(restarts: int) -> str:
    return "1 restart" if restarts == 1 else f"{restarts} restarts"
