from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.cli import words
from spark_jobs.protocol.ids import InputName, LossId, StageName
from spark_jobs.protocol.losses import LostOffsets, OffsetRange
from spark_jobs.protocol.pins import DeltaPin, FilePin, FilesPin, KafkaPin
from spark_jobs.runtime.stages.watermark import BEGINNING_OF_TIME_MS, END_OF_TIME_MS


@pytest.mark.parametrize(
    ("watermark_ms", "text"),
    [
        (None, "none yet"),
        (0, "none yet"),
        (BEGINNING_OF_TIME_MS, "none yet"),
        (END_OF_TIME_MS, "end of time"),
        (1_357_128_000_250, "2013-01-02 12:00:00 UTC"),
    ],
)
def test_a_watermark_is_shown_as_a_date_or_in_words(watermark_ms: int | None, text: str) -> None:
    assert words.watermark(watermark_ms) == text


@given(st.integers(BEGINNING_OF_TIME_MS, 2**63 - 1))
def test_every_watermark_has_a_text(watermark_ms: int) -> None:
    assert words.watermark(watermark_ms)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "0.25 s"), (12.4, "12 s"), (59.7, "1:00 min"), (65, "1:05 min"), (7210, "2:00:10 h")],
)
def test_a_duration_is_shown_with_a_useful_precision(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(("lost", "lines"), [(0, 0), (5, 5), (60, 6)])
def test_only_the_last_losses_of_a_round_are_shown(lost: int, lines: int) -> None:
    losses = [
        LostOffsets(
            id=LossId(f"1-{number}"),
            input=InputName("events"),
            stage=StageName("hourly"),
            topics={"clicks": {0: OffsetRange(first=number, end=number + 1)}},
        )
        for number in range(lost)
    ]
    shown = words.losses(losses)
    assert len(shown) == lines
    assert lost <= 5 or shown[0] == f"{lost - 5} more before these. See spark-jobs losses."
    assert not lost or f"Loss 1-{lost - 1}: " in shown[-1]


def test_a_pin_says_where_an_input_ends() -> None:
    assert words.pin(DeltaPin(path="/d", table="t", version=4)) == "/d at version 4"
    files = tuple(FilePin(path=f"/in/{n}", timestamp_ms=0, size_bytes=600) for n in range(2))
    assert words.pin(FilesPin(path="/in", files=files)) == "/in: 2 files, 1.2 kB"
    assert words.pin(KafkaPin(topics={"a": {0: 4, 1: 0}, "b": {0: 9}})) == "topic a: 2 partitions; topic b: 1 partition"


def test_times_are_shown_in_utc() -> None:
    assert words.moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05 UTC"


def test_a_shown_command_can_be_copied_into_a_shell() -> None:
    assert words.command_line("spark-jobs", "inspect", "--home", "/a b").plain.strip() == "spark-jobs inspect --home '/a b'"


def test_violations_are_shown_by_stage_and_expectation() -> None:
    found = words.violations({StageName("orders"): {"positive": 1_200, "known": 1}, StageName("daily"): {}})
    assert [text.plain for text in found] == [
        "1,200 rows of the round violate positive, which stage orders expects.",
        "1 rows of the round violate known, which stage orders expects.",
    ]


@pytest.mark.parametrize(
    ("value", "most", "bar"), [(10, 10, "█" * 10), (5, 10, "█" * 5), (0.25, 10, "▎"), (0, 10, ""), (0, 0, ""), (20, 10, "█" * 10)]
)
def test_a_bar_is_the_share_of_the_largest_value(value: float, most: float, bar: str) -> None:
    assert words.bar(value, most).plain == bar
