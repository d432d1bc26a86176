"""Ends of streams: the batches that read past an end, and the rows that such batches get instead."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_jobs.protocol.pins import DeltaPin, FilePin, FilesPin
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, ExpectedFile
from spark_jobs.runtime.inputs.delta_source import DeltaBound, delta_offset
from spark_jobs.runtime.inputs.file_source import EndlessFiles, FilesBound, FileSource, FileSourceLog
from spark_jobs.runtime.inputs.source_kind import OwnLog
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.storage.local import LocalFiles

BOUND = DeltaBound(DeltaPin(path="/t", table="id", version=5))


def offset(version: int, index: int = -1, *, snapshot: bool = False) -> str:
    return json.dumps(
        {"sourceVersion": 1, "reservoirId": "id", "reservoirVersion": version, "index": index, "isStartingVersion": snapshot}
    )


@pytest.mark.parametrize(
    ("line", "exceeded"),
    [
        (NO_OFFSET, False),
        (offset(5, 7), False),
        (offset(6), False),
        (offset(6, 0), True),
        (offset(7), True),
        (offset(5, 3, snapshot=True), False),
        (offset(6, 0, snapshot=True), True),
    ],
)
def test_a_delta_batch_may_end_at_the_pinned_version_and_not_later(line: str, exceeded: bool) -> None:
    assert BOUND.exceeded(None, line) is exceeded


@pytest.mark.parametrize(
    ("line", "reached"),
    [(None, False), (NO_OFFSET, False), (offset(5, 7), False), (offset(5, 7, snapshot=True), False), (offset(6), True)],
)
def test_only_an_offset_behind_the_pinned_version_means_that_everything_is_read(line: str | None, reached: bool) -> None:
    assert BOUND.reached(line) is reached


@given(st.integers(0, 20), st.integers(-1, 5))
def test_a_cut_back_delta_batch_ends_exactly_at_the_pin(version: int, index: int) -> None:
    line = BOUND.cut_back(None, offset(version, index))
    assert not BOUND.exceeded(None, line)
    assert BOUND.reached(line)


def entry(path: str, batch: int, timestamp_ms: int) -> str:
    return json.dumps({"path": path, "timestamp": timestamp_ms, "batchId": batch})


def log_line(number: int) -> str:
    return json.dumps({"logOffset": number})


class Source:
    """A log of a file source with these batches of paths, some of them pinned."""

    def __init__(self, root: Path, batches: list[list[str]], pinned: list[str], per_batch: int | None = None) -> None:
        directory = root / "sources/0"
        directory.mkdir(parents=True)
        lines: list[str] = []
        for number, paths in enumerate(batches):
            new = [entry(path, number, pinned.index(path) if path in pinned else 1) for path in paths]
            lines += new
            compact = number % 10 == 9
            name = f"{number}.compact" if compact else str(number)
            (directory / name).write_text("\n".join(["v1", *(lines if compact else new)]))
        self.log = FileSourceLog(LocalFiles(root), "sources/0")
        files = tuple(FilePin(path=path, timestamp_ms=n, size_bytes=1) for n, path in enumerate(pinned))
        self.bound = FilesBound(FilesPin(path="/in", files=files), self.log, per_batch)

    def paths(self, after: int, last: int) -> list[str]:
        return [found["path"] for found in self.log.between(after, last)]


def test_a_file_batch_with_only_pinned_files_is_within_its_end(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"], ["b"]], ["a", "b", "c"])
    assert not source.bound.exceeded(log_line(0), log_line(1))
    assert not source.bound.reached(log_line(1))


def test_a_file_that_arrived_later_exceeds_the_end(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"], ["b", "late"]], ["a", "b"])
    assert source.bound.exceeded(log_line(0), log_line(1))
    assert not source.bound.exceeded(None, log_line(0))


def test_a_cut_back_file_batch_keeps_its_pinned_files_and_takes_the_remaining_ones(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"], ["late", "b"]], ["a", "b", "c"])
    line = source.bound.cut_back(log_line(0), log_line(1))
    assert not source.bound.exceeded(log_line(0), line)
    assert source.bound.reached(line)
    assert source.paths(-1, 1) == ["a", "b", "c"]


def test_a_cut_back_file_batch_respects_the_limit_of_files_per_batch(tmp_path: Path) -> None:
    source = Source(tmp_path, [["late"]], ["a", "b", "c"], per_batch=2)
    line = source.bound.cut_back(None, log_line(0))
    assert source.paths(-1, 0) == ["a", "b"]
    assert not source.bound.reached(line)


def test_a_cut_back_compact_entry_keeps_the_files_of_earlier_batches(tmp_path: Path) -> None:
    batches = [[f"f{n}"] for n in range(9)] + [["late", "f9"]]
    source = Source(tmp_path, batches, [f"f{n}" for n in range(10)])
    for n in range(9):
        (tmp_path / f"sources/0/{n}").unlink()  # Spark deletes entries that a compact entry repeats
    source.bound.cut_back(log_line(8), log_line(9))
    assert source.paths(-1, 9) == [f"f{n}" for n in range(10)]


def test_cutting_back_twice_has_the_same_result_as_once(tmp_path: Path) -> None:
    source = Source(tmp_path, [["late"], ["b"], ["late too"]], ["a", "b"])
    source.bound.cut_back(None, log_line(2))
    first = {path.name: path.read_text() for path in (tmp_path / "sources/0").iterdir()}
    source.bound.cut_back(None, log_line(2))
    assert {path.name: path.read_text() for path in (tmp_path / "sources/0").iterdir()} == first


def test_a_delta_offset_is_written_as_spark_writes_it() -> None:
    assert json.loads(delta_offset("id", 6)) == json.loads(offset(6))


def test_a_pinned_file_that_spark_passes_over_gets_its_own_batch(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"], ["b"]], ["a", "old", "b", "older"], per_batch=1)
    line = source.bound.passed_over(log_line(1))
    assert line == log_line(2)
    assert source.paths(1, 2) == ["old"]
    assert source.bound.passed_over(log_line(2)) == log_line(3)
    assert source.bound.reached(log_line(3))
    assert source.bound.passed_over(log_line(3)) is None


def test_planning_passed_over_files_repeats_after_a_crash_before_the_plan_was_written(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"]], ["a", "old"])
    assert source.bound.passed_over(log_line(0)) == log_line(1)
    assert source.bound.passed_over(log_line(0)) == log_line(1)
    assert source.paths(0, 1) == ["old"]


def test_a_batch_of_passed_over_files_can_be_a_compact_entry(tmp_path: Path) -> None:
    source = Source(tmp_path, [[f"f{n}"] for n in range(9)], [*(f"f{n}" for n in range(9)), "old"])
    assert source.bound.passed_over(log_line(8)) == log_line(9)
    for n in range(9):
        (tmp_path / f"sources/0/{n}").unlink()
    assert source.paths(-1, 9) == [*(f"f{n}" for n in range(9)), "old"]


def test_a_lost_file_is_left_out_and_a_new_file_of_the_same_name_is_read(tmp_path: Path) -> None:
    source = Source(tmp_path, [["a"], ["b", "c"], ["b"]], ["a", "b", "c"])
    again = [json.loads(entry("b", 2, 7_000))]
    source.log.rewrite(2, again)
    endless = EndlessFiles(source.log, {("b", 0)})
    assert not endless.exceeded(None, log_line(0))
    assert endless.exceeded(log_line(0), log_line(1))
    assert not endless.exceeded(log_line(1), log_line(2))
    endless.cut_back(log_line(0), log_line(1))
    assert source.paths(-1, 1) == ["a", "c"]
    assert source.paths(1, 2) == ["b"]


def test_files_that_are_only_planned_do_not_count_as_read(tmp_path: Path) -> None:
    log = Source(tmp_path, [["file:/a"], ["file:/b"]], ["file:/a", "file:/b"]).log
    assert log.identities(0) == {"file:/a": 0}
    assert log.identities(1) == {"file:/a": 0, "file:/b": 1}


def test_a_file_that_a_store_lists_in_milliseconds_is_the_pinned_one_whose_time_is_in_seconds(tmp_path: Path) -> None:
    for place, same in (("s3a://lake/in", True), ("file:/in", False)):
        log = FileSourceLog(LocalFiles(tmp_path), place.partition(":")[0])
        log.rewrite(0, [json.loads(entry(f"{place}/a", 0, 5_123))])
        pin = FilesPin(path=place, files=(FilePin(path=f"{place}/a", timestamp_ms=5_000, size_bytes=1),))
        bound = FilesBound(pin, log, None)
        assert bound.exceeded(None, log_line(0)) is not same
        assert bound.reached(log_line(0)) is same


@pytest.mark.parametrize("line", [NO_OFFSET, offset(3)])
def test_spark_passes_over_no_version_of_a_delta_table(line: str) -> None:
    assert BOUND.passed_over(line) is None


class TestFilesBeforeTheBeginning:
    """Files before the beginning of a stage: Spark counts them as read, and no batch reads them."""

    def test_belong_to_no_batch_and_are_not_left_to_read(self, tmp_path: Path) -> None:
        log = FileSourceLog(LocalFiles(tmp_path), "sources/0")
        pins = [FilePin(path=path, timestamp_ms=0, size_bytes=1) for path in ("a", "b")]
        for _ in range(2):
            log.pass_over(pins)
        assert log.passed() == {("a", 0), ("b", 0)}
        assert log.identities(0) == {"a": 0, "b": 0}
        assert log.between(-1, 0) == []
        assert log.latest() == 0

    def test_are_in_a_rewritten_compact_entry(self, tmp_path: Path) -> None:
        log = FileSourceLog(LocalFiles(tmp_path), "sources/0")
        log.pass_over([FilePin(path="a", timestamp_ms=0, size_bytes=1)])
        for number in range(1, 10):
            log.rewrite(number, [json.loads(entry(f"f{number}", number, 1))])
        for number in range(9):
            (tmp_path / f"sources/0/{number}").unlink()
        assert log.passed() == {("a", 0)}
        assert [found["path"] for found in log.between(-1, 9)] == [f"f{number}" for number in range(1, 10)]

    def test_do_not_hide_later_files_of_the_same_names(self, tmp_path: Path) -> None:
        own = OwnLog(LocalFiles(tmp_path), "sources/0")
        log = FileSourceLog(own.files, own.directory)
        old, new, other = (FilePin(path=path, timestamp_ms=n, size_bytes=1) for path, n in (("a", 0), ("a", 7_000), ("b", 0)))
        log.pass_over([old, other])
        pin = FilesPin(path="/in", files=(new, other))
        bound = FileSource().bound(pin, None, Leaf(0, "StreamingRelation", "json", {}, StructType()), own, ())
        assert bound.unread(log_line(0)) == "1 of its 1 files, such as a"
        assert bound.passed_over(log_line(0)) == log_line(1)
        assert log.between(-1, 1) == [json.loads(entry("a", 1, 7_000))]
        assert bound.unread(log_line(1)) is None


@pytest.mark.parametrize("place", ["file:///in", "hdfs://node/in", "s3a://bucket/in", "gs://bucket/in"])
@pytest.mark.parametrize(
    ("status", "says"),
    [
        ((1_700_000_001_000, 10), None),
        ((1_700_000_002_000, 10), "was changed at 2023-11-14T22:13:22.000+00:00, and before at 2023-11-14T22:13:21.000+00:00"),
        ((1_700_000_001_000, 9), "has 9 bytes, but had 10"),
        (None, "is gone"),
    ],
)
def test_a_file_in_any_store_is_recognized_by_its_size_and_its_time(
    place: str, status: tuple[int, int] | None, says: str | None
) -> None:
    assert ExpectedFile(f"{place}/a.json", 1_700_000_001_000, 10).difference(status) == says


@pytest.mark.parametrize(("place", "same"), [("file:///in", False), ("s3a://bucket/in", True)])
def test_the_time_of_a_file_in_a_store_is_compared_to_the_second(place: str, same: bool) -> None:
    expected = ExpectedFile(f"{place}/a.json", 1_700_000_001_234)
    assert (expected.difference((1_700_000_001_000, 10)) is None) is same
