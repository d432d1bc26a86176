"""The checkpoint of a plain Spark query. The tests write it by hand, in Spark's format."""

import json
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.runtime.inputs.old_query import batches_since, files_read, kind_of, last_offsets
from tests.support.memory_files import MemoryFiles

ROWS = InputName("rows")
DELTA = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": 4, "index": 2, "isStartingVersion": True}


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def planned(root: Path, batch: int, *sources: Any, version: str = "v1") -> None:
    header = {"batchWatermarkMs": 7, "batchTimestampMs": 5, "conf": {}}
    write(root / "offsets" / str(batch), version, json.dumps(header), *map(json.dumps, sources))


def committed(root: Path, batch: int) -> None:
    write(root / "commits" / str(batch), "v1", "{}")
    write(root / "commits" / f".{batch}.crc", "no batch")


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """A query over a Delta table that stopped after batch 10."""
    root = tmp_path / "old"
    write(root / "metadata", json.dumps({"id": "q"}))
    for batch in (9, 10):
        planned(root, batch, DELTA | {"index": batch})
        committed(root, batch)
    return root


def adopted(query: Path, offset: Any) -> AdoptedOffsets:
    return AdoptedOffsets(checkpoint=query.as_uri(), query="q", batch=BatchId(0), offset=json.dumps(offset))


def test_the_last_offsets_are_the_line_of_the_source(query: Path) -> None:
    found = last_offsets(ROWS, str(query))
    assert (found.checkpoint, found.query, found.batch) == (query.as_uri(), "q", 10)
    assert json.loads(found.offset) == DELTA | {"index": 10}


def test_a_query_that_still_runs_is_noticed_as_soon_as_it_has_planned_a_batch(query: Path) -> None:
    found = last_offsets(ROWS, str(query))
    assert batches_since(found) == 0
    planned(query, 11, DELTA)
    assert batches_since(found) == 1


def test_a_directory_that_is_gone_has_no_later_batches(query: Path) -> None:
    found = last_offsets(ROWS, str(query))
    rmtree(query)
    assert batches_since(found) == 0


def test_a_query_without_a_known_id_may_be_adopted(query: Path) -> None:
    (query / "metadata").unlink()
    assert last_offsets(ROWS, str(query)).query == ""


def _uncommitted(root: Path) -> None:
    planned(root, 11, DELTA)


def _not_even_planned(root: Path) -> None:
    (root / "offsets" / "10").unlink()


def _never_ran(root: Path) -> None:
    for path in [*root.glob("offsets/*"), *root.glob("commits/*")]:
        path.unlink()


def _with_state(root: Path) -> None:
    write(root / "state" / "0" / "0" / "1.delta", "")


def _replaced(*sources: Any, version: str = "v1") -> Any:
    return lambda root: planned(root, 10, *sources, version=version)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_uncommitted, "is not committed"),
        (_not_even_planned, "is not committed"),
        (_never_ran, "has no offsets of a Spark query"),
        (_with_state, "keeps state"),
        (_replaced(DELTA, DELTA), "had 2 sources"),
        (_replaced(), "not an entry of version v1"),
        (_replaced(DELTA, version="v2"), "not an entry of version v1"),
        (_replaced({"orders": {"0": 17}}), "neither a Delta table nor files"),
        (_replaced(17), "neither a Delta table nor files"),
        (_replaced(DELTA | {"sourceVersion": 3}), "stopped at a schema change"),
    ],
)
def test_a_checkpoint_that_cannot_be_adopted_is_refused_with_a_remedy(query: Path, change: Any, problem: str) -> None:
    change(query)
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        last_offsets(ROWS, str(query))
    assert refused.value.remedy
    assert refused.value.evidence["source"] == ROWS


def test_a_missing_directory_has_no_offsets(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="has no offsets"):
        last_offsets(ROWS, str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_an_offset_line_that_is_no_json_belongs_to_neither_kind(query: Path) -> None:
    with pytest.raises(InvalidParameterError, match="neither a Delta table nor files"):
        kind_of(ROWS, AdoptedOffsets(checkpoint=query.as_uri(), query="q", batch=BatchId(0), offset="-"))


@pytest.mark.parametrize(("offset", "kind"), [(DELTA, "delta"), ({"logOffset": 3}, "files")])
def test_the_kind_of_a_source_is_recognized_by_its_offset_line(query: Path, offset: Any, kind: str) -> None:
    assert kind_of(ROWS, adopted(query, offset)) == kind


def entry(number: int) -> dict[str, Any]:
    return {"path": f"file:///in/{number}%20", "timestamp": number, "batchId": number}


@given(interval=st.integers(1, 12), written=st.integers(1, 40), last=st.integers(0, 40), kept=st.integers(0, 40))
def test_all_files_up_to_the_last_offset_count_as_read_also_in_a_compacted_log(
    interval: int, written: int, last: int, kept: int
) -> None:
    """Spark deletes entries before a compact entry. After a crash the last offset may be some entries behind the log."""
    last = min(last, written - 1)
    files = MemoryFiles()
    compact = [number for number in range(written) if (number + 1) % interval == 0]
    for number in range(written):
        if number in compact:
            _log(files, f"{number}.compact", [entry(each) for each in range(number + 1)])
        elif number >= min(max(compact, default=0), kept):
            _log(files, str(number), [entry(number)])
    assert read(files, last) == [entry(number) for number in range(last + 1)]


def test_a_log_with_a_gap_does_not_say_which_files_were_read() -> None:
    files = MemoryFiles()
    for number in (0, 1, 3):
        _log(files, str(number), [entry(number)])
    with pytest.raises(InvalidParameterError, match="lacks entry 2"):
        read(files, 3)


def read(files: MemoryFiles, last: int) -> list[dict[str, Any]]:
    stopped = AdoptedOffsets(checkpoint="-", query="q", batch=BatchId(0), offset=json.dumps({"logOffset": last}))
    return files_read(ROWS, stopped, lambda url: files)


def _log(files: MemoryFiles, name: str, entries: list[dict[str, Any]]) -> None:
    files.create(f"sources/0/{name}", "\n".join(["v1", *map(json.dumps, entries)]).encode())
