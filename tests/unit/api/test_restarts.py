from collections.abc import Callable
from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline, RestartStrategy
from spark_jobs.api.restarts import OnStageFailure
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.restart_settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartSettings


def restart_of(**options: Any) -> RestartSettings:
    """Returns the restart settings that the runtime gets."""
    pipeline = Pipeline("flights", **options)
    pipeline.source(bounded=False, name="events")(lambda spark: spark)
    pipeline.stage(name="copied", sink=DeltaSink("/copied"))(lambda events: events)
    found = pipeline.graph().restart
    assert pipeline.rewired({}, "/tables").graph().restart == found
    assert found is not None
    return found


FLINKS_DEFAULT_WITH_AN_END = ExponentialDelay(
    initial_backoff_ms=1_000,
    max_backoff_ms=60_000,
    backoff_multiplier=1.5,
    reset_backoff_threshold_ms=3_600_000,
    jitter_factor=0.1,
    attempts_before_reset_backoff=20,
)


@pytest.mark.parametrize(
    ("strategy", "stored"),
    [
        (RestartStrategy.none(), NoRestart()),
        (RestartStrategy.fixed_delay(), FixedDelay(attempts=1, delay_ms=1_000)),
        (
            RestartStrategy.failure_rate(),
            FailureRate(max_failures_per_interval=1, failure_rate_interval_ms=60_000, delay_ms=1_000),
        ),
        (RestartStrategy.exponential_delay(), FLINKS_DEFAULT_WITH_AN_END),
    ],
    ids=lambda value: str(getattr(value, "kind", "")),
)
def test_a_strategy_has_flinks_defaults_and_limited_attempts(strategy: RestartStrategy, stored: RestartSettings) -> None:
    assert restart_of(restart=strategy) == stored


def test_the_default_strategy_of_a_pipeline_is_flinks_with_limited_attempts() -> None:
    assert restart_of() == FLINKS_DEFAULT_WITH_AN_END


def test_intervals_of_a_strategy_have_the_usual_form() -> None:
    found = restart_of(restart=RestartStrategy.fixed_delay(attempts=0, delay="1 minute 30 seconds"))
    assert found == FixedDelay(attempts=0, delay_ms=90_000)


fixed, rate, growing = RestartStrategy.fixed_delay, RestartStrategy.failure_rate, RestartStrategy.exponential_delay


@pytest.mark.parametrize(
    ("make", "options", "problem"),
    [
        (fixed, {"attempts": -1}, "attempts=-1 is not a whole number of at least 0"),
        (fixed, {"delay": 1}, "delay=1 is not a string"),
        (rate, {"max_failures_per_interval": 0}, "max_failures_per_interval=0 is not a whole number above 0"),
        (rate, {"failure_rate_interval": "0 seconds"}, "failure_rate_interval='0 seconds' is shorter than 1 millisecond"),
        (rate, {"delay": "soon"}, "delay='soon' is not an interval"),
        (growing, {"initial_backoff": "0 seconds"}, "initial_backoff='0 seconds' is shorter than 1 millisecond"),
        (growing, {"initial_backoff": "2 minutes"}, "initial_backoff='2 minutes' is longer than max_backoff='1 minute'"),
        (growing, {"max_backoff": None}, "max_backoff=None is not a string"),
        (growing, {"backoff_multiplier": 1}, "backoff_multiplier=1 is not a number above 1"),
        (growing, {"backoff_multiplier": float("inf")}, "backoff_multiplier=inf is not a number above 1"),
        (growing, {"reset_backoff_threshold": "0 seconds"}, "reset_backoff_threshold='0 seconds' is shorter than 1 millisecond"),
        (growing, {"jitter_factor": 1.1}, "jitter_factor=1.1 is not a number from 0 to 1"),
        (growing, {"attempts_before_reset_backoff": 0}, "attempts_before_reset_backoff=0 is not a whole number above 0"),
    ],
)
def test_an_invalid_option_is_refused_by_name(
    make: Callable[..., RestartStrategy], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidPipelineError, match=f"Pipeline 'flights': restart {problem}"):
        Pipeline("flights", restart=make(**options))


@pytest.mark.parametrize("wrong", ["fixed-delay", RestartStrategy])
def test_a_value_that_is_not_a_strategy_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a restart strategy"):
        Pipeline("flights", restart=wrong)


def test_strategies_are_compared_by_value_and_shown_as_code() -> None:
    assert fixed(attempts=3) == fixed(attempts=3) != fixed()
    assert repr(fixed(attempts=3)) == "RestartStrategy.fixed_delay(attempts=3, delay='1 second')"
    assert len({fixed(), fixed()}) == 1


def test_a_bounded_pipeline_restarts_no_stage_unless_it_declares_a_strategy() -> None:
    for restart, expected in ((None, None), (RestartStrategy.none(), NoRestart())):
        pipeline = Pipeline("flights", restart=restart)
        pipeline.source(bounded=True, name="events")(lambda spark: spark)
        pipeline.stage(name="copied", sink=DeltaSink("/copied"))(lambda events: events)
        assert pipeline.graph().restart == expected


def copying(*, bounded: bool, **options: Any) -> Pipeline:
    pipeline = Pipeline("flights", **options)
    pipeline.source(bounded=bounded, name="events")(lambda spark: spark)
    pipeline.stage(name="copied", sink=DeltaSink("/copied"))(lambda events: events)
    return pipeline


def test_other_stages_run_on_without_a_failed_stage_unless_all_inputs_end_or_it_is_declared() -> None:
    assert copying(bounded=False).graph().on_stage_failure is OnStageFailure.ISOLATE
    assert copying(bounded=True).graph().on_stage_failure is OnStageFailure.FAIL
    fails = copying(bounded=False, on_stage_failure="fail")
    assert fails.graph().on_stage_failure is fails.rewired({}, "/tables").graph().on_stage_failure is OnStageFailure.FAIL


def test_isolated_failures_are_refused_for_a_bounded_pipeline() -> None:
    with pytest.raises(InvalidPipelineError, match="its round cannot complete without every stage"):
        copying(bounded=True, on_stage_failure="isolate").graph()
    isolates = copying(bounded=False, on_stage_failure="isolate")
    rewired = isolates.rewired({"events": lambda spark: spark}, "/tables")
    assert rewired.graph().on_stage_failure is OnStageFailure.FAIL, "a test's rows end"


def test_an_unknown_on_stage_failure_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="on_stage_failure"):
        Pipeline("flights", on_stage_failure="ignore")  # type: ignore[arg-type]
