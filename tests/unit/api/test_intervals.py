import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.api.intervals import parse_delay_ms
from spark_jobs.api.refusals import Place
from spark_jobs.protocol.errors import InvalidPipelineError

PLACE = Place("flights", "source", "departures")
UNITS_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
HUNDRED_YEARS_MS = 36_500 * 86_400_000

terms = st.lists(st.tuples(st.integers(0, 500), st.sampled_from(sorted(UNITS_MS)), st.booleans()), min_size=1, max_size=6)


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
    assert parse_delay_ms(PLACE, delay) == expected_ms


@given(terms, st.sampled_from([" ", "  "]))
def test_terms_are_added_up(parts: list[tuple[int, str, bool]], space: str) -> None:
    text = space.join(f"{number}{space}{unit}{'s' if plural else ''}" for number, unit, plural in parts)
    assert parse_delay_ms(PLACE, text) == sum(number * UNITS_MS[unit] for number, unit, _ in parts)


@given(st.text())
def test_any_text_is_an_interval_in_range_or_refused(text: str) -> None:
    try:
        delay_ms = parse_delay_ms(PLACE, text)
    except InvalidPipelineError:
        return
    assert 0 <= delay_ms <= HUNDRED_YEARS_MS


@pytest.mark.parametrize(
    "delay", ["", " ", "soon", "30", "minutes", "-1 hour", "1.5 hours", "1 hour and 2 minutes", "1 hour,", "\u0661 hour"]
)
def test_what_is_no_interval_is_refused(delay: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is not an interval"):
        parse_delay_ms(PLACE, delay)


@pytest.mark.parametrize("delay", ["1 month", "2 months", "1 year", "1 day 2 years"])
def test_months_and_years_have_no_fixed_length(delay: str) -> None:
    with pytest.raises(InvalidPipelineError, match="no fixed length"):
        parse_delay_ms(PLACE, delay)


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(InvalidPipelineError, match="unknown unit 'fortnights'"):
        parse_delay_ms(PLACE, "2 fortnights")


@pytest.mark.parametrize("delay", ["36501 days", "9" * 10_000 + " milliseconds"])
def test_more_than_a_hundred_years_are_refused(delay: str) -> None:
    with pytest.raises(InvalidPipelineError, match="longer than 36500 days"):
        parse_delay_ms(PLACE, delay)


def test_a_number_is_not_an_interval() -> None:
    with pytest.raises(InvalidPipelineError, match="is not a string"):
        parse_delay_ms(PLACE, 30)
