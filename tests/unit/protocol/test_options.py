from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.options import flag, interval_ms, ratio, whole_number

UNITS_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
HUNDRED_YEARS_MS = 36_500 * 86_400_000

terms = st.lists(st.tuples(st.integers(0, 500), st.sampled_from(sorted(UNITS_MS)), st.booleans()), min_size=1, max_size=6)


def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    assert remedy
    return InvalidParameterError(problem, remedy=remedy, **evidence)


@pytest.mark.parametrize(
    ("delay", "expected_ms"),
    [
        ("30 minutes", 1_800_000),
        ("1 hour 30 minutes", 5_400_000),
        ("1 day", 86_400_000),
        ("0 seconds", 0),
        ("  2   HOURS ", 7_200_000),
        ("10minutes", 600_000),
        ("36500 days", HUNDRED_YEARS_MS),
    ],
)
def test_an_interval_is_read_as_milliseconds(delay: str, expected_ms: int) -> None:
    assert interval_ms(refused, "delay", delay) == expected_ms


@given(terms, st.sampled_from([" ", "  "]))
def test_the_terms_of_an_interval_are_added_up(parts: list[tuple[int, str, bool]], space: str) -> None:
    text = space.join(f"{number}{space}{unit}{'s' if plural else ''}" for number, unit, plural in parts)
    assert interval_ms(refused, "delay", text) == sum(number * UNITS_MS[unit] for number, unit, _ in parts)


@given(st.text())
def test_every_text_is_either_an_interval_in_range_or_refused(text: str) -> None:
    try:
        delay_ms = interval_ms(refused, "delay", text)
    except InvalidParameterError:
        return
    assert 0 <= delay_ms <= HUNDRED_YEARS_MS


@pytest.mark.parametrize(
    "delay", ["", " ", "soon", "30", "minutes", "-1 hour", "1.5 hours", "1 hour and 2 minutes", "1 hour,", "\u0661 hour"]
)
def test_a_text_that_is_not_an_interval_is_refused(delay: str) -> None:
    with pytest.raises(InvalidParameterError, match="is not an interval"):
        interval_ms(refused, "delay", delay)


@pytest.mark.parametrize("delay", ["1 month", "2 months", "1 year", "1 day 2 years"])
def test_months_and_years_are_refused_because_their_length_is_not_fixed(delay: str) -> None:
    with pytest.raises(InvalidParameterError, match="no fixed length"):
        interval_ms(refused, "delay", delay)


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(InvalidParameterError, match="unknown unit 'fortnights'"):
        interval_ms(refused, "delay", "2 fortnights")


@pytest.mark.parametrize("delay", ["36501 days", "9" * 10_000 + " milliseconds"])
def test_more_than_a_hundred_years_are_refused(delay: str) -> None:
    with pytest.raises(InvalidParameterError, match="longer than 36500 days"):
        interval_ms(refused, "delay", delay)


def test_a_number_is_not_an_interval() -> None:
    with pytest.raises(InvalidParameterError, match="is not a string"):
        interval_ms(refused, "delay", 30)


def test_a_refused_interval_is_named_with_its_option() -> None:
    with pytest.raises(InvalidParameterError, match="delay='soon' is not an interval") as caught:
        interval_ms(refused, "delay", "soon")
    assert caught.value.evidence == {"delay": "soon"}


def test_an_interval_can_have_a_minimum() -> None:
    assert interval_ms(refused, "interval", "1 millisecond", least_ms=1) == 1
    with pytest.raises(InvalidParameterError, match="interval='0 seconds' is shorter than 1 millisecond"):
        interval_ms(refused, "interval", "0 seconds", least_ms=1)


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True])
def test_a_value_that_is_not_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidParameterError, match="attempts=.* is not a whole number of at least 0"):
        whole_number(refused, "attempts", value, least=0)


def test_a_whole_number_can_have_a_minimum() -> None:
    assert (whole_number(refused, "retained", 1, least=1), whole_number(refused, "attempts", 0, least=0)) == (1, 0)
    with pytest.raises(InvalidParameterError, match="retained=0 is not a whole number above 0"):
        whole_number(refused, "retained", 0, least=1)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True])
def test_a_value_that_is_not_a_ratio_in_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidParameterError, match="jitter=.* is not a number from 0 to 1"):
        ratio(refused, "jitter", value, least=0, most=1)


def test_a_ratio_can_include_or_exclude_its_minimum() -> None:
    assert [ratio(refused, "jitter", value, least=0, most=1) for value in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    assert ratio(refused, "multiplier", 1.01, least=1, above=True) == 1.01
    with pytest.raises(InvalidParameterError, match="multiplier=1 is not a number above 1"):
        ratio(refused, "multiplier", 1, least=1, above=True)


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_a_flag_that_is_not_a_boolean_is_refused(value: object) -> None:
    assert flag(refused, "unaligned", True)
    with pytest.raises(InvalidParameterError, match="unaligned=.* is neither True nor False"):
        flag(refused, "unaligned", value)
