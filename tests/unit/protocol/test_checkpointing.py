from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.checkpointing import (
    SETTINGS,
    Checkpointing,
    CheckpointOverrides,
    over,
    overridden,
    read_checkpointing,
    read_overrides,
)
from spark_jobs.protocol.errors import InvalidParameterError

ALL: dict[str, Any] = {
    "interval": "1 minute",
    "timeout": "10 minutes",
    "min_pause": "0 seconds",
    "tolerable_failures": 0,
    "retained": 1,
    "unaligned": False,
    "aligned_timeout": None,
    "max_in_flight_bytes": None,
    "second_copy": False,
}


def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    assert remedy
    return InvalidParameterError(problem, remedy=remedy, **evidence)


def settings(**given: Any) -> Checkpointing:
    return read_checkpointing(refused, ALL | given)


def overrides(**given: Any) -> CheckpointOverrides:
    return read_overrides(refused, given)


def test_any_number_of_failures_is_tolerated_by_default() -> None:
    assert settings(tolerable_failures=None).tolerable_failures is None


def test_intervals_are_stored_as_milliseconds() -> None:
    assert settings(aligned_timeout="30 seconds", max_in_flight_bytes=1 << 20) == Checkpointing(
        interval_ms=60_000,
        timeout_ms=600_000,
        min_pause_ms=0,
        tolerable_failures=0,
        retained=1,
        unaligned=False,
        aligned_timeout_ms=30_000,
        max_in_flight_bytes=1 << 20,
    )


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("interval", "0 seconds", "interval='0 seconds' is shorter than 1 millisecond"),
        ("interval", None, "interval=None is not a string"),
        ("timeout", "soon", "timeout='soon' is not an interval"),
        ("min_pause", 5, "min_pause=5 is not a string"),
        ("tolerable_failures", -1, "tolerable_failures=-1 is not a whole number of at least 0"),
        ("retained", 0, "retained=0 is not a whole number above 0"),
        ("retained", True, "retained=True is not a whole number above 0"),
        ("unaligned", "yes", "unaligned='yes' is neither True nor False"),
        ("aligned_timeout", "0 seconds", "aligned_timeout='0 seconds' is shorter than 1 millisecond"),
        ("max_in_flight_bytes", "1g", "max_in_flight_bytes='1g' is not a whole number above 0"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(setting: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem):
        settings(**{setting: value})


@pytest.mark.parametrize("limit", [{"aligned_timeout": "1 second"}, {"aligned_timeout": "never"}, {"max_in_flight_bytes": 1}])
def test_limits_of_alignment_are_refused_for_unaligned_checkpoints(limit: dict[str, Any]) -> None:
    (name,) = limit
    with pytest.raises(InvalidParameterError, match=f"{name}= is for aligned checkpoints"):
        settings(unaligned=True, **limit)
    with pytest.raises(InvalidParameterError, match=f"{name}= is for aligned checkpoints"):
        overrides(unaligned=True, **limit)


@pytest.mark.parametrize(
    ("given", "waits_ms"),
    [
        ({}, 30_000),
        ({"interval": "3 seconds"}, 1_500),
        ({"interval": "1 hour"}, 300_000),
        ({"timeout": "20 seconds"}, 10_000),
        ({"aligned_timeout": "40 seconds"}, 40_000),
        ({"aligned_timeout": "never"}, None),
    ],
)
def test_alignment_takes_at_most_half_of_interval_and_timeout_by_default(given: dict[str, Any], waits_ms: int | None) -> None:
    assert settings(**given).aligned_at_most_ms == waits_ms
    assert overridden(refused, settings(), overrides(**given)).aligned_at_most_ms == waits_ms


@pytest.mark.parametrize("timeout", ["10 seconds", "9 seconds"])
def test_a_checkpoint_becomes_unaligned_before_it_fails(timeout: str) -> None:
    with pytest.raises(InvalidParameterError, match="aligned_timeout \\(10000 ms\\) is not shorter than timeout"):
        settings(aligned_timeout="10 seconds", timeout=timeout)
    declared = settings(aligned_timeout="10 seconds", timeout="11 seconds")
    with pytest.raises(InvalidParameterError, match="aligned_timeout \\(10000 ms\\) is not shorter than timeout"):
        overridden(refused, declared, overrides(timeout=timeout))


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidParameterError, match="'intervall' is not a setting") as caught:
        overrides(intervall="1 minute")
    assert all(name in caught.value.remedy for name in SETTINGS)


def test_empty_overrides_change_nothing() -> None:
    assert overrides(interval=None, unaligned=None) == CheckpointOverrides()
    assert overridden(refused, settings(retained=3), CheckpointOverrides()) == settings(retained=3)
    assert overridden(refused, settings(retained=3), None) == settings(retained=3)


def test_overriding_one_setting_leaves_the_others() -> None:
    found = overridden(refused, settings(retained=3, interval="5 minutes"), overrides(interval="1 second"))
    assert found == settings(retained=3, interval="1 second")


def test_the_upper_of_two_overrides_counts_for_each_setting() -> None:
    lower, upper = overrides(interval="1 second", retained=2), overrides(retained=5, min_pause="1 minute")
    assert over(lower, upper) == overrides(interval="1 second", retained=5, min_pause="1 minute")
    assert over(None, upper) == upper
    assert over(lower, None) == lower
    assert over(None, None) is None


def test_an_override_of_alignment_replaces_all_settings_of_alignment() -> None:
    switching = settings(aligned_timeout="30 seconds", max_in_flight_bytes=9)
    for said in ({"unaligned": True}, {"unaligned": False}, {"aligned_timeout": "5 seconds"}, {"max_in_flight_bytes": 7}):
        assert overridden(refused, switching, overrides(**said)) == settings(**said)
        assert overridden(refused, settings(unaligned=True), overrides(**said)) == settings(**said)
    assert overridden(refused, switching, overrides(retained=2)) == settings(
        aligned_timeout="30 seconds", max_in_flight_bytes=9, retained=2
    )


anything = st.fixed_dictionaries(
    {},
    optional={
        "interval": st.sampled_from(["1 second", "2 hours"]),
        "timeout": st.sampled_from(["2 minutes", "1 hour"]),
        "retained": st.integers(1, 9),
        "tolerable_failures": st.integers(0, 9),
        "aligned_timeout": st.sampled_from(["1 second", "1 minute", "never"]),
        "max_in_flight_bytes": st.integers(1, 1 << 40),
        "second_copy": st.booleans(),
    },
)
alignments = st.one_of(
    anything,
    anything.map(
        lambda given: (
            {name: value for name, value in given.items() if name not in ("aligned_timeout", "max_in_flight_bytes")}
            | {"unaligned": True}
        )
    ),
)


@given(alignments, alignments, alignments)
def test_overrides_can_be_combined_in_any_grouping(
    declared: dict[str, Any], lower: dict[str, Any], upper: dict[str, Any]
) -> None:
    pipeline, connection, task = settings(**declared), overrides(**lower), overrides(**upper)
    one_by_one = overridden(refused, overridden(refused, pipeline, connection), task)
    assert overridden(refused, pipeline, over(connection, task)) == one_by_one
    assert not (one_by_one.unaligned and (one_by_one.aligned_timeout_ms or one_by_one.max_in_flight_bytes))
