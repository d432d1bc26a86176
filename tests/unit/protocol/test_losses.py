"""Recognizes losses that are recorded already, and describes losses in text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.losses import (
    Loss,
    LostFile,
    LostFiles,
    LostOffsets,
    LostVersions,
    OffsetRange,
    PassedOver,
    Records,
    SkippedVersion,
    SourceFile,
    StagedFile,
    TableFile,
    beyond,
    goes_on_without,
    pieces,
    place_in_words,
    rows_at_most,
    said,
    some_pieces,
)

FOR_EVER = 50
"""An offset that is higher than all offsets in these tests."""
WHOSE: dict[str, Any] = {"input": InputName("rows"), "stage": StageName("copy")}


def files(*names: str, stage: str = "copy") -> LostFiles:
    found = tuple(LostFile(path=name, size_bytes=10) for name in names)
    return LostFiles(input=InputName("rows"), stage=StageName(stage), files=found)


def offsets(first: int, end: int | None, number: int = 0) -> LostOffsets:
    return LostOffsets(**WHOSE, topics={"clicks": {number: OffsetRange(first=first, end=end)}})


def versions(first: int, last: int, *names: str) -> LostVersions:
    found = tuple(LostFile(path=name) for name in names)
    return LostVersions(**WHOSE, path="/in", first=first, last=last, files=found)


def skipped(*numbers: int) -> LostVersions:
    found = tuple(
        SkippedVersion(version=number, added_files=1, added_rows=3, removed_files=2, removed_rows=None) for number in numbers
    )
    return LostVersions(**WHOSE, path="/in", skipped=found)


@pytest.mark.parametrize(
    ("loss", "recorded", "left"),
    [
        (files("a", "b"), [], [files("a", "b")]),
        (files("a", "b"), [files("a")], [files("b")]),
        (files("a", "b"), [files("a"), files("b")], []),
        (files("a"), [files("a", stage="other")], [files("a")]),
        (offsets(5, 9), [offsets(4, 9)], []),
        (offsets(5, 9), [offsets(5, 8)], [offsets(8, 9)]),
        (offsets(5, 9), [offsets(4, 6), offsets(6, 8)], [offsets(8, 9)]),
        (offsets(2, 9), [offsets(4, 6)], [offsets(2, 4), offsets(6, 9)]),
        (offsets(2, 4), [offsets(4, 6)], [offsets(2, 4)]),
        (offsets(5, 9), [offsets(5, 9, number=1)], [offsets(5, 9)]),
        (offsets(5, None), [offsets(5, 9)], [offsets(9, None)]),
        (offsets(5, 9), [offsets(5, None)], []),
        (offsets(5, None), [offsets(4, None)], []),
        (versions(2, 4), [versions(2, 5)], []),
        (versions(2, 4), [versions(3, 5)], [versions(2, 2)]),
        (versions(2, 8), [versions(3, 5)], [versions(2, 2), versions(6, 8)]),
        (versions(2, 8, "a"), [versions(3, 5)], [versions(2, 2, "a"), versions(6, 8)]),
        (skipped(5), [versions(2, 4)], [skipped(5)]),
        (skipped(3, 5), [versions(2, 4)], [skipped(5)]),
        (versions(2, 8), [skipped(5)], [versions(2, 4), versions(6, 8)]),
        (skipped(5, 7), [skipped(5)], [skipped(7)]),
        (skipped(5, 7), [skipped(5), skipped(7)], []),
        (versions(2, 4, "a"), [versions(2, 4)], [LostVersions(**WHOSE, path="/in", files=(LostFile(path="a"),))]),
    ],
)
def test_parts_of_a_loss_that_are_recorded_are_not_recorded_again(loss: Loss, recorded: list[Loss], left: list[Loss]) -> None:
    assert beyond(loss, recorded) == left


@given(
    first=st.integers(0, 12),
    length=st.none() | st.integers(1, 12),
    recorded=st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(1, 8)), max_size=4),
)
def test_each_offset_of_a_loss_is_in_the_ledger_once(
    first: int, length: int | None, recorded: list[tuple[int, int | None]]
) -> None:
    ledger: list[Loss] = []
    for begin, count in [*recorded, (first, length)]:
        ledger += beyond(offsets(begin, None if count is None else begin + count), ledger)
    wanted = {offset for begin, count in [*recorded, (first, length)] for offset in offsets_of(begin, count)}
    found = [
        offset
        for loss in ledger
        if isinstance(loss, LostOffsets)
        for gone in loss.topics["clicks"].values()
        for offset in offsets_of(gone.first, None if gone.end is None else gone.end - gone.first)
    ]
    assert sorted(found) == sorted(wanted)


def offsets_of(first: int, count: int | None) -> range:
    return range(first, FOR_EVER if count is None else min(first + count, FOR_EVER))


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (files("a", "b"), None),
        (LostFiles(**WHOSE, files=(LostFile(path="a", rows=3), LostFile(path="b", rows=4))), 7),
        (offsets(5, 9), 4),
        (offsets(5, None), None),
        (skipped(5, 7), 6),
        (versions(2, 4), None),
        (LostVersions(**WHOSE, path="/in", files=(LostFile(path="a", rows=3),)), 3),
    ],
)
def test_the_maximal_number_of_lost_rows_comes_from_the_logs(loss: Loss, rows: int | None) -> None:
    assert rows_at_most(loss) == rows


def test_the_text_of_a_loss_has_all_known_facts() -> None:
    assert said(files("a", "b")) == "2 files with 20 bytes, such as a"
    assert said(offsets(5, 9)) == "4 offsets, such as 5 to 8 of partition 0 of topic clicks"
    assert (
        said(offsets(5, None)) == "1 partition that the source does not read any more, such as 0 of topic clicks from offset 5 on"
    )
    assert said(skipped(5)) == "version 5 of /in, which removes 2 files and adds 1 file with 3 rows"
    assert said(skipped(5, 7)) == "version 5 and 1 more of /in, which removes 2 files and adds 1 file with 3 rows"
    assert said(versions(2, 4, "a")) == "versions 2 to 4 of /in and 1 file, such as a"


def passed_over(file: str = "a", **changed: object) -> PassedOver:
    unit = StagedFile(batch=BatchId(4), file=file, size_bytes=900)
    facts = {"unit": unit, "rows": 25, "error": "ValueError: record 230", "tries": 3} | changed
    return PassedOver.model_validate(WHOSE | facts)


def test_a_passed_over_file_is_recorded_once_with_its_number_of_staged_rows() -> None:
    assert rows_at_most(passed_over()) == 25
    assert beyond(passed_over(), [passed_over("b")]) == [passed_over()]
    assert beyond(passed_over(tries=9), [passed_over()]) == []
    assert beyond(passed_over(), [passed_over(stage="another")]) == [passed_over()]


def test_a_sentence_names_the_stage_and_the_rows_that_it_leaves_out() -> None:
    assert goes_on_without(files("a", "b")).endswith(
        "goes on without the lost rows of source rows: 2 files with 20 bytes, such as a"
    )
    assert goes_on_without(passed_over()).endswith(
        "goes on without the 25 rows of batch 4 of stage rows in a, with which its batch fails: ValueError: record 230"
    )


def test_each_offset_of_a_range_is_a_piece_and_a_file_is_one_piece() -> None:
    offsets, file = Records(topic="clicks", partition=1, first=5, end=9), StagedFile(batch=BatchId(4), file="a", size_bytes=9)
    assert (pieces(offsets), pieces(file)) == (4, 1)
    assert some_pieces(offsets, 1, 3) == Records(topic="clicks", partition=1, first=6, end=8)
    assert some_pieces(file, 0, 1) == file


def test_the_text_of_a_place_depends_on_its_kind() -> None:
    units = (
        Records(topic="clicks", partition=1, first=5, end=6),
        SourceFile(path="file:/in/a.json", timestamp_ms=1),
        TableFile(version=3, path="a.parquet", size_bytes=9),
    )
    assert [place_in_words(passed_over(unit=unit)) for unit in units] == [
        "source rows at offset 5 of partition 1 of topic clicks",
        "source rows in file:/in/a.json",
        "version 3 of source rows in a.parquet",
    ]
