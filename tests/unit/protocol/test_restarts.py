"""Restart strategies.

The examples are calculated by hand from Flink's formulas: max(initial, min(initial · multiplier^n ± jitter, max)).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.errors import (
    FencedError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    RestartsExhaustedError,
    RunCancelledError,
    StorageFullError,
)
from spark_jobs.protocol.restart_settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartSettings
from spark_jobs.protocol.restarts import Exhausted, RestartHistory, RestartIn, Restarts, after_failure, exhausted, may_heal

HOUR_MS = 3_600_000


class Highest(random.Random):
    """Draws the longest delay."""

    def randint(self, a: int, b: int) -> int:
        return b


class Lowest(random.Random):
    """Draws the shortest delay."""

    def randint(self, a: int, b: int) -> int:
        return a


def exponential(**options: Any) -> ExponentialDelay:
    defaults: dict[str, Any] = {
        "initial_backoff_ms": 1_000,
        "max_backoff_ms": 60_000,
        "backoff_multiplier": 1.5,
        "reset_backoff_threshold_ms": HOUR_MS,
        "jitter_factor": 0.0,
        "attempts_before_reset_backoff": None,
    }
    return ExponentialDelay(**defaults | options)


def follow(
    settings: RestartSettings, times_ms: Iterable[int], chance: random.Random | None = None
) -> list[RestartIn | Exhausted]:
    """Returns the decision after each of the failures at these times."""
    history, decisions = RestartHistory(), []
    for now_ms in times_ms:
        history, decision = after_failure(settings, history, now_ms, chance or Highest())
        decisions.append(decision)
    return decisions


def delays_s(decisions: Sequence[RestartIn | Exhausted]) -> list[float | None]:
    return [decision.delay_s if isinstance(decision, RestartIn) else None for decision in decisions]


def each_after_its_restart(settings: RestartSettings, count: int, chance: random.Random | None = None) -> list[float | None]:
    """Returns the delays when each failure comes one second after the previous restart."""
    history, now_ms, found = RestartHistory(), 0, list[float | None]()
    for _ in range(count):
        history, decision = after_failure(settings, history, now_ms, chance or Highest())
        found += delays_s([decision])
        now_ms = (history.restart_at_ms or now_ms) + 1_000
    return found


def test_the_first_failure_without_a_strategy_is_final() -> None:
    (decision,) = follow(NoRestart(), [0])
    assert decision == Exhausted("The restart strategy is none.")


def test_fixed_delay_counts_restarts_for_ever() -> None:
    settings = FixedDelay(attempts=2, delay_ms=1_000)
    assert delays_s(follow(settings, [0, 5_000, 9 * HOUR_MS])) == [1.0, 1.0, None]
    assert follow(settings, [0, 5_000, 9_000])[-1] == Exhausted("The restart strategy fixed-delay allows 2 restarts.")


def test_fixed_delay_without_attempts_allows_no_restart() -> None:
    assert follow(FixedDelay(attempts=0, delay_ms=1_000), [0]) == [
        Exhausted("The restart strategy fixed-delay allows 0 restarts.")
    ]


def test_failure_rate_forgets_failures_that_are_older_than_its_interval() -> None:
    settings = FailureRate(max_failures_per_interval=2, failure_rate_interval_ms=60_000, delay_ms=1_000)
    assert delays_s(follow(settings, [0, 30_000, 60_001, 90_001])) == [1.0, 1.0, 1.0, 1.0]
    assert delays_s(follow(settings, [0, 30_000, 60_000])) == [1.0, 1.0, None]
    assert follow(settings, [0, 30_000, 60_000])[-1] == Exhausted("The restart strategy failure-rate allows 2 failures in 60 s.")


def test_exponential_delay_grows_up_to_its_maximum() -> None:
    found = each_after_its_restart(exponential(), 13)
    expected = [1.0, 1.5, 2.25, 3.375, 5.062, 7.593, 11.39, 17.085, 25.628, 38.443, 57.665, 60.0, 60.0]
    assert found == expected


@pytest.mark.parametrize(("chance", "expected"), [(Lowest(), [1.0, 1.35, 2.025]), (Highest(), [1.1, 1.65, 2.475])])
def test_exponential_delay_is_jittered_and_never_below_its_initial_backoff(chance: random.Random, expected: list[float]) -> None:
    assert each_after_its_restart(exponential(jitter_factor=0.1), 3, chance) == expected


def test_jitter_never_goes_above_the_maximum() -> None:
    assert each_after_its_restart(exponential(jitter_factor=1.0, max_backoff_ms=1_200), 3, Highest()) == [1.2, 1.2, 1.2]


@pytest.mark.parametrize(("calm_ms", "expected_s"), [(HOUR_MS, 1.0), (HOUR_MS - 1, 2.25)])
def test_exponential_delay_starts_again_after_some_time_without_failures(calm_ms: int, expected_s: float) -> None:
    restarted_again_ms = 2_000 + 1_500
    assert delays_s(follow(exponential(), [0, 2_000, restarted_again_ms + calm_ms])) == [1.0, 1.5, expected_s]


def test_exponential_delay_can_limit_the_restarts_in_a_row() -> None:
    settings = exponential(attempts_before_reset_backoff=2)
    assert delays_s(follow(settings, [0, 2_000, 9_000])) == [1.0, 1.5, None]
    assert delays_s(follow(settings, [0, 2_000, 3_500 + HOUR_MS, 2 * HOUR_MS])) == [1.0, 1.5, 1.0, 1.5]
    assert follow(settings, [0, 2_000, 9_000])[-1] == Exhausted(
        "The restart strategy exponential-delay allows 2 restarts in a row."
    )


def test_a_backoff_that_would_overflow_is_the_maximum() -> None:
    settings, history = exponential(backoff_multiplier=1e300), RestartHistory(restarts=50, failures_ms=(0,), restart_at_ms=0)
    assert delays_s([after_failure(settings, history, 1, Lowest())[1]]) == [60.0]


STRATEGIES: list[RestartSettings] = [
    FixedDelay(attempts=3, delay_ms=4_000),
    FailureRate(max_failures_per_interval=3, failure_rate_interval_ms=60_000, delay_ms=4_000),
    exponential(initial_backoff_ms=4_000),
]


@pytest.mark.parametrize("settings", STRATEGIES, ids=lambda settings: settings.type)
def test_failures_while_a_restart_is_pending_count_as_one(settings: RestartSettings) -> None:
    first, second, third = follow(settings, [10_000, 11_000, 14_000])
    assert (first, second, third) == (RestartIn(4.0, merged=False), RestartIn(3.0, merged=True), RestartIn(0.0, merged=True))
    assert follow(settings, [10_000, 11_000, 14_000, 14_001])[-1] == follow(settings, [10_000, 14_001])[-1]


@pytest.mark.parametrize("settings", STRATEGIES, ids=lambda settings: settings.type)
def test_a_clock_that_is_set_back_does_not_prolong_a_delay(settings: RestartSettings) -> None:
    decision = follow(settings, [10 * HOUR_MS, 0])[-1]
    assert isinstance(decision, RestartIn)
    assert decision.delay_s <= 60
    assert not decision.merged


def test_a_batch_that_fails_after_hours_each_time_is_not_retried_for_ever() -> None:
    settings, history = exponential(attempts_before_reset_backoff=3), RestartHistory()
    decisions = list[RestartIn | Exhausted]()
    for number in range(5):
        history, decision = after_failure(settings, history, 2 * HOUR_MS * number, Highest(), progressed=False)
        decisions.append(decision)
    assert delays_s(decisions) == [1.0, 1.5, 2.25, None, None]
    assert delays_s(follow(settings, [2 * HOUR_MS * number for number in range(5)])) == [1.0] * 5, "with a batch done in between"


def test_an_exhausted_strategy_stays_exhausted() -> None:
    assert delays_s(follow(FixedDelay(attempts=0, delay_ms=9_000), [0, 1, 20_000])) == [None, None, None]
    once = exponential(attempts_before_reset_backoff=1)
    assert delays_s(follow(once, [0, 2_000, 9 * HOUR_MS])) == [1.0, None, None]


gaps_ms = st.lists(st.integers(0, 200_000), max_size=12)


def moments(gaps: list[int]) -> list[int]:
    return [1_000 + sum(gaps[: index + 1]) for index in range(len(gaps))]


fixed = st.builds(FixedDelay, attempts=st.integers(0, 5), delay_ms=st.integers(0, 90_000))
rates = st.builds(
    FailureRate,
    max_failures_per_interval=st.integers(1, 4),
    failure_rate_interval_ms=st.integers(1, 300_000),
    delay_ms=st.integers(0, 90_000),
)
exponentials = st.builds(
    ExponentialDelay,
    initial_backoff_ms=st.integers(1, 5_000),
    max_backoff_ms=st.integers(5_000, 90_000),
    backoff_multiplier=st.floats(1.01, 100),
    reset_backoff_threshold_ms=st.integers(1, 300_000),
    jitter_factor=st.floats(0, 1),
    attempts_before_reset_backoff=st.none() | st.integers(1, 5),
)


def of_their_own(times_ms: list[int], decisions: Sequence[RestartIn | Exhausted]) -> tuple[list[int], int | None]:
    """Returns the times of failures that were not merged, up to the first that exhausts the strategy, and the index of that one."""
    counted: list[int] = []
    for now_ms, decision in zip(times_ms, decisions, strict=True):
        if isinstance(decision, Exhausted):
            return [*counted, now_ms], len(counted)
        if not decision.merged:
            counted.append(now_ms)
    return counted, None


@given(fixed, gaps_ms)
def test_fixed_delay_allows_exactly_its_attempts(settings: FixedDelay, gaps: list[int]) -> None:
    times_ms = moments(gaps)
    counted, exhausted = of_their_own(times_ms, follow(settings, times_ms))
    assert exhausted == (settings.attempts if len(counted) > settings.attempts else None)


@given(rates, gaps_ms)
def test_failure_rate_is_exhausted_by_the_first_failure_too_many_in_an_interval(settings: FailureRate, gaps: list[int]) -> None:
    times_ms = moments(gaps)
    counted, exhausted = of_their_own(times_ms, follow(settings, times_ms))
    most, interval_ms = settings.max_failures_per_interval, settings.failure_rate_interval_ms
    too_many = [n for n in range(most, len(counted)) if counted[n] - counted[n - most] <= interval_ms]
    assert exhausted == (too_many[0] if too_many else None)


@given(exponentials, gaps_ms, st.randoms(use_true_random=False))
def test_exponential_delay_stays_in_its_bounds(settings: ExponentialDelay, gaps: list[int], chance: random.Random) -> None:
    for decision in follow(settings, moments(gaps), chance):
        if isinstance(decision, RestartIn) and not decision.merged:
            assert settings.initial_backoff_ms <= round(decision.delay_s * 1000) <= settings.max_backoff_ms


@given(exponentials, st.integers(2, 12))
def test_delays_in_a_row_without_jitter_never_become_shorter(settings: ExponentialDelay, count: int) -> None:
    steady = settings.model_copy(update={"jitter_factor": 0.0, "reset_backoff_threshold_ms": HOUR_MS})
    found = [delay for delay in each_after_its_restart(steady, count) if delay is not None]
    assert found == sorted(found)
    assert len(found) == min(count, settings.attempts_before_reset_backoff or count)


@given(fixed | rates | exponentials, gaps_ms, st.integers(0, 12), st.integers(0, 2**32))
def test_the_history_of_restarts_can_be_stored_and_read_at_any_time(
    settings: RestartSettings, gaps: list[int], stored: int, seed: int
) -> None:
    times_ms, chance = moments(gaps), random.Random(seed)
    history, decisions = RestartHistory(), list[RestartIn | Exhausted]()
    for number, now_ms in enumerate(times_ms):
        if number == stored:
            history = RestartHistory.model_validate_json(history.model_dump_json())
        history, decision = after_failure(settings, history, now_ms, chance)
        decisions.append(decision)
    assert decisions == follow(settings, times_ms, random.Random(seed))
    assert len(history.failures_ms) <= 5


def test_the_time_of_a_failure_is_the_time_of_its_report() -> None:
    times_s = iter([100.0, 100.25, 102.0])
    restarts = Restarts(exponential(), lambda: next(times_s), Highest())
    assert [restarts.failed() for _ in range(3)] == [
        RestartIn(1.0, merged=False),
        RestartIn(0.75, merged=True),
        RestartIn(1.5, merged=False),
    ]
    assert restarts.history == RestartHistory(restarts=2, failures_ms=(102_000,), restart_at_ms=103_500)


def test_another_process_continues_the_history_of_restarts() -> None:
    clock: Callable[[], float] = lambda: 102.0  # noqa: E731  # a clock that stands still
    earlier = RestartHistory(restarts=1, failures_ms=(100_000,), restart_at_ms=101_000)
    assert Restarts(exponential(), clock, Highest(), earlier).failed() == RestartIn(1.5, merged=False)


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (InterruptedRunError("A stage failed."), True),
        (StorageFullError("The disk is full."), True),
        (OutcomeUnknownError("It may have happened."), True),
        (ValueError("a user's own"), True),
        (RejectedError("The table does not fit."), False),
        (RestartsExhaustedError("A stage failed too often."), False),
        (RunCancelledError("A person has ended it."), False),
        (FencedError("A higher attempt is live."), False),
    ],
)
def test_a_restart_follows_only_an_error_that_it_may_heal(error: Exception, heals: bool) -> None:
    assert may_heal(error) is heals


def test_the_error_of_an_exhausted_strategy_carries_the_last_failure() -> None:
    last = InterruptedRunError("A stage failed.", exists="Checkpoint 4.", safe="Its tables.", remedy="Look at it.")
    error = exhausted(Exhausted("It allows 2 restarts."), last)
    assert error.failed == "It allows 2 restarts. The last failure was InterruptedRunError: A stage failed."
    assert (error.exists, error.safe, error.evidence) == ("Checkpoint 4.", "Its tables.", {"last": "InterruptedRunError"})
    assert exhausted(Exhausted("Enough."), ValueError("no such airport")).failed.endswith("ValueError: no such airport")
