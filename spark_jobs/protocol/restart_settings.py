"""The stored restart strategies, with Flink's names."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.options import Refuse, interval_ms, ratio, whole_number


class NoRestart(Part):
    """Allows no restart."""

    type: Literal["none"] = "none"


class FixedDelay(Part):
    """Allows a fixed number of restarts, each after the same delay."""

    type: Literal["fixed-delay"] = "fixed-delay"
    attempts: int
    """Restarts in all; at least 0."""
    delay_ms: int


class FailureRate(Part):
    """Allows any number of restarts while failures are rare."""

    type: Literal["failure-rate"] = "failure-rate"
    max_failures_per_interval: int
    """Number of failures allowed in one interval; one more ends the attempt. At least 1."""
    failure_rate_interval_ms: int
    delay_ms: int


class ExponentialDelay(Part):
    """Waits longer before each restart, until there has been no failure for a while."""

    type: Literal["exponential-delay"] = "exponential-delay"
    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_multiplier: float
    """A factor above 1."""
    reset_backoff_threshold_ms: int
    """Time without a failure after a restart, after which the next failure counts as the first."""
    jitter_factor: float
    """Random part of a delay, from 0 to 1: a delay is longer or shorter by up to this factor."""
    attempts_before_reset_backoff: int | None
    """Number of restarts in a row. None: any number."""


RestartSettings = NoRestart | FixedDelay | FailureRate | ExponentialDelay


def read_restart(refused: Refuse, kind: str, given: Mapping[str, object]) -> RestartSettings:
    """Returns the checked strategy that people wrote.

    Args:
        refused: Makes the error to raise.
        kind: Flink's name of the strategy, such as ``"fixed-delay"``.
        given: All of its options by the names that people write.

    Raises:
        RejectedError: An option has a value that is not allowed.
    """
    return _READ[kind](refused, given)


def _no_restart(refused: Refuse, given: Mapping[str, object]) -> NoRestart:
    return NoRestart()


def _fixed_delay(refused: Refuse, given: Mapping[str, object]) -> FixedDelay:
    return FixedDelay(
        attempts=whole_number(refused, "attempts", given["attempts"], least=0),
        delay_ms=interval_ms(refused, "delay", given["delay"]),
    )


def _failure_rate(refused: Refuse, given: Mapping[str, object]) -> FailureRate:
    most, interval = "max_failures_per_interval", "failure_rate_interval"
    return FailureRate(
        max_failures_per_interval=whole_number(refused, most, given[most], least=1),
        failure_rate_interval_ms=interval_ms(refused, interval, given[interval], least_ms=1),
        delay_ms=interval_ms(refused, "delay", given["delay"]),
    )


def _exponential_delay(refused: Refuse, given: Mapping[str, Any]) -> ExponentialDelay:
    initial_ms, most_ms, threshold_ms = (
        interval_ms(refused, name, given[name], least_ms=1)
        for name in ("initial_backoff", "max_backoff", "reset_backoff_threshold")
    )
    if initial_ms > most_ms:
        raise refused(
            f"initial_backoff={given['initial_backoff']!r} is longer than max_backoff={given['max_backoff']!r}.",
            "Give a shorter initial_backoff, or a longer max_backoff.",
            initial_backoff_ms=initial_ms,
            max_backoff_ms=most_ms,
        )
    attempts = given["attempts_before_reset_backoff"]
    return ExponentialDelay(
        initial_backoff_ms=initial_ms,
        max_backoff_ms=most_ms,
        backoff_multiplier=ratio(refused, "backoff_multiplier", given["backoff_multiplier"], least=1, above=True),
        reset_backoff_threshold_ms=threshold_ms,
        jitter_factor=ratio(refused, "jitter_factor", given["jitter_factor"], least=0, most=1),
        attempts_before_reset_backoff=(
            None if attempts is None else whole_number(refused, "attempts_before_reset_backoff", attempts, least=1)
        ),
    )


_READ: Mapping[str, Callable[[Refuse, Mapping[str, object]], RestartSettings]] = {
    "none": _no_restart,
    "fixed-delay": _fixed_delay,
    "failure-rate": _failure_rate,
    "exponential-delay": _exponential_delay,
}
