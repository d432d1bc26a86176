"""The checkpoint of a plain Spark query. The tests write it by hand, in Spark's format."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.errors import InvalidParameterError, NotFoundError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.runtime.inputs.old_query import batches_since, files_read, format_of, last_offsets
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from tests.support.memory_files import MemoryFiles
from tests.support.object_store import object_store
from tests.support.places import IN_A_STORE, ON_A_DISK

ROWS = InputName("rows")
DELTA = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": 4, "index": 2, "isStartingVersion": True}


def write(root: Files, path: str, *lines: str) -> None:
    root.replace(path, "\n".join(lines).encode())


def planned(root: Files, batch: int, *sources: Any, version: str = "v1") -> None:
    header = {"batchWatermarkMs": 7, "batchTimestampMs": 5, "conf": {}}
    write(root, f"offsets/{batch}", version, json.dumps(header), *map(json.dumps, sources))


def committed(root: Files, batch: int) -> None:
    write(root, f"commits/{batch}", "v1", "{}")
    write(root, f"commits/.{batch}.crc", "no batch")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(params=[ON_A_DISK, IN_A_STORE])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """The checkpoint directory of a query over a Delta table that stopped after batch 10."""
    place = f"{request.getfixturevalue('store')}/{tmp_path.name}" if request.param == IN_A_STORE else str(tmp_path)
    root = open_place(f"{place}/old query")
    write(root, "metadata", json.dumps({"id": "q"}))
    for batch in (9, 10):
        planned(root, batch, DELTA | {"index": batch})
        committed(root, batch)
    return root


def adopted(offset: Any) -> AdoptedOffsets:
    return AdoptedOffsets(checkpoint="-", query="q", batch=BatchId(0), offset=json.dumps(offset))


def test_the_last_offsets_are_the_line_of_the_source(query: Files) -> None:
    found = last_offsets(ROWS, query.url)
    assert (found.checkpoint, found.query, found.batch) == (query.url, "q", 10)
    assert json.loads(found.offset) == DELTA | {"index": 10}


def test_the_directory_is_known_by_one_url_however_it_was_written(query: Files) -> None:
    scheme, _, rest = query.url.partition("://")
    written = {"file": rest, "s3": f"s3a://{rest}/"}[scheme]
    assert last_offsets(ROWS, written).checkpoint == query.url


def test_a_query_that_still_runs_is_noticed_as_soon_as_it_has_planned_a_batch(query: Files) -> None:
    found = last_offsets(ROWS, query.url)
    assert batches_since(found) == 0
    planned(query, 11, DELTA)
    assert batches_since(found) == 1


def test_a_directory_that_is_gone_has_no_later_batches(query: Files) -> None:
    found = last_offsets(ROWS, query.url)
    for name in query.names(""):
        query.delete(name)
    assert batches_since(found) == 0


def test_a_query_whose_bucket_is_gone_plans_no_batch(store: str) -> None:
    assert batches_since(adopted(DELTA).model_copy(update={"checkpoint": "s3://gone/old query"})) == 0


@pytest.mark.parametrize("damaged", [None, b"", b"\xff", b"[]", b"{}"])
def test_a_query_without_a_known_id_may_be_adopted(query: Files, damaged: bytes | None) -> None:
    query.delete("metadata")
    if damaged is not None:
        query.create("metadata", damaged)
    assert last_offsets(ROWS, query.url).query == ""


def _uncommitted(root: Files) -> None:
    planned(root, 11, DELTA)


def _not_even_planned(root: Files) -> None:
    root.delete("offsets/10")


def _never_ran(root: Files) -> None:
    root.delete("offsets")
    root.delete("commits")


def _with_state(root: Files) -> None:
    write(root, "state/0/0/1.delta", "-")


def _empty(root: Files) -> None:
    root.replace("offsets/10", b"")


def _not_utf8(root: Files) -> None:
    root.replace("offsets/10", b"\xff\xfe\n{}\n{}")


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
        (_empty, "not an entry of version v1"),
        (_not_utf8, "not an entry of version v1"),
        (_replaced({"logOffset": None}), "neither a Delta table nor files"),
        (_replaced({"orders": {"0": 17}}), "neither a Delta table nor files"),
        (_replaced(17), "neither a Delta table nor files"),
        (_replaced(DELTA | {"sourceVersion": 3}), "stopped at a schema change"),
    ],
)
def test_a_checkpoint_that_cannot_be_adopted_is_refused_with_a_remedy(query: Files, change: Any, problem: str) -> None:
    change(query)
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        last_offsets(ROWS, query.url)
    assert refused.value.remedy
    assert refused.value.evidence["source"] == ROWS


def test_a_missing_directory_has_no_offsets(query: Files) -> None:
    with pytest.raises(InvalidParameterError, match="nowhere has no offsets"):
        last_offsets(ROWS, f"{query.url}/nowhere")
    assert "nowhere" not in query.names("")


def test_a_missing_bucket_is_named(store: str) -> None:
    with pytest.raises(NotFoundError, match="s3://no-such-bucket.*: the bucket does not exist"):
        last_offsets(ROWS, "s3://no-such-bucket/old")


def test_an_offset_line_that_is_no_json_belongs_to_neither_kind() -> None:
    with pytest.raises(InvalidParameterError, match="neither a Delta table nor files"):
        format_of(ROWS, AdoptedOffsets(checkpoint="-", query="q", batch=BatchId(0), offset="-"))


@pytest.mark.parametrize(("offset", "kind"), [(DELTA, "delta"), ({"logOffset": 3}, "files")])
def test_the_kind_of_a_source_is_recognized_by_its_offset_line(offset: Any, kind: str) -> None:
    assert format_of(ROWS, adopted(offset)) == kind


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


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"v2\n{}", b"v1\n{", b"v1\n{}", b"v1\n[]", b"v1\n17"])
def test_a_damaged_log_does_not_say_which_files_were_read(damaged: bytes) -> None:
    files = MemoryFiles()
    _log(files, "0", [entry(0)])
    files.create("sources/0/1", damaged)
    with pytest.raises(InvalidParameterError, match="sources/0/1 is damaged") as refused:
        read(files, 1)
    assert refused.value.remedy


def test_the_files_that_were_read_are_found_where_the_query_kept_its_log(query: Files) -> None:
    offset = {"logOffset": 10}
    planned(query, 10, offset)
    _log(query, "9.compact", [entry(number) for number in range(10)])
    _log(query, "10", [entry(10)])
    found = last_offsets(ROWS, query.url)
    assert files_read(ROWS, found) == [entry(number) for number in range(11)]


def read(files: MemoryFiles, last: int) -> list[dict[str, Any]]:
    return files_read(ROWS, adopted({"logOffset": last}), lambda url: files)


def _log(files: Files, name: str, entries: list[dict[str, Any]]) -> None:
    files.create(f"sources/0/{name}", "\n".join(["v1", *map(json.dumps, entries)]).encode())
