"""The watermark of a stage at the end of a round."""

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.ids import InputName
from spark_jobs.runtime.stages.watermark import (
    BEGINNING_OF_TIME_MS,
    END_OF_TIME_MS,
    held_delay_ms,
    release_watermark_ms,
)

A, B = InputName("a"), InputName("b")
OLDEST_MS, NEWEST_MS = BEGINNING_OF_TIME_MS, END_OF_TIME_MS


@given(st.integers(OLDEST_MS, NEWEST_MS), st.integers(OLDEST_MS, NEWEST_MS), st.integers(0, 63))
def test_a_held_watermark_makes_no_row_late_in_any_order(newest_ms: int, row_ms: int, position: int) -> None:
    assert row_ms > newest_ms - held_delay_ms(position)


def test_the_slowest_input_decides_the_watermark() -> None:
    assert release_watermark_ms({A: 10_000, B: 50_000}, {A: 1_000, B: 45_000}) == 5_000


def test_no_watermark_is_released_before_every_input_has_had_a_row() -> None:
    assert release_watermark_ms({A: 10_000}, {A: 0, B: 0}) is None


def test_a_stage_without_event_time_releases_no_watermark() -> None:
    assert release_watermark_ms({A: 10_000}, {}) is None
