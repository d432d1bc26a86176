"""The commit of an append has what features of the table need of it. Spark reads such commits in tests/spark/test_table_features.py."""

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.delta_rs import cached_log, log_of, open_table
from tests.support.handwritten_table import table_with

ONE, OTHER = AppId("one"), AppId("other")
LATER_MS = 32_503_680_000_000
"""A time in the year 3000: that of a commit by a writer whose clock is ahead."""


def _add(name: str, rows: int) -> dict[str, Any]:
    stats = json.dumps({"numRecords": rows})
    return {"path": name, "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": True, "stats": stats}


def _actions(uri: str, version: int) -> list[dict[str, Any]]:
    text = (Path(uri.removeprefix("file://")) / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def _row_ids(uri: str, version: int) -> list[tuple[str, int, int]]:
    adds = [action["add"] for action in _actions(uri, version) if "add" in action]
    return [(add["path"], add["baseRowId"], add["defaultRowCommitVersion"]) for add in adds]


def _highest(uri: str, version: int) -> list[int]:
    domains = [action["domainMetadata"] for action in _actions(uri, version) if "domainMetadata" in action]
    return [json.loads(domain["configuration"])["rowIdHighWaterMark"] for domain in domains]


def _commit(uri: str, app: AppId, number: int, *adds: dict[str, Any]) -> None:
    open_table(uri).commit(adds, app, CheckpointId(number), {})


def _tracked(directory: Path, **properties: str) -> str:
    return table_with(directory, "rowTracking", "domainMetadata", properties={"delta.enableRowTracking": "true"} | properties)


def _timed(directory: Path) -> str:
    return table_with(directory, "inCommitTimestamp", properties={"delta.enableInCommitTimestamps": "true"})


def test_every_file_gets_row_ids_after_those_of_the_file_before(tmp_path: Path) -> None:
    uri = _tracked(tmp_path)
    _commit(uri, ONE, 1, _add("a", 3), _add("b", 4))
    _commit(uri, ONE, 2, _add("c", 5))
    assert _row_ids(uri, 1) == [("a", 0, 1), ("b", 3, 1)]
    assert _row_ids(uri, 2) == [("c", 7, 2)]
    assert [_highest(uri, version) for version in (1, 2)] == [[6], [11]]


def test_row_ids_of_a_faster_commit_are_not_used_again(tmp_path: Path) -> None:
    uri = _tracked(tmp_path)
    slow = open_table(uri)
    _commit(uri, OTHER, 1, _add("a", 3))
    slow.commit([_add("b", 4)], ONE, CheckpointId(1), {})
    assert _row_ids(uri, 2) == [("b", 3, 2)]


def test_the_highest_row_id_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    uri = _tracked(tmp_path)
    _commit(uri, ONE, 1, _add("a", 3))
    _commit(uri, ONE, 2)  # its commit has no row ids
    DeltaTable(uri).create_checkpoint()
    cached_log.cache_clear()
    assert log_of(uri).newest().highest_row_id == 2
    _commit(uri, ONE, 3, _add("b", 4))
    assert _row_ids(uri, 3) == [("b", 3, 3)]


def test_a_commit_without_files_gives_no_row_ids(tmp_path: Path) -> None:
    uri = _tracked(tmp_path)
    _commit(uri, ONE, 1)
    assert _highest(uri, 1) == []


def test_suspended_row_tracking_gives_no_row_ids(tmp_path: Path) -> None:
    suspended = {"delta.enableRowTracking": "false", "delta.rowTrackingSuspended": "true"}
    uri = _tracked(tmp_path, **suspended)
    _commit(uri, ONE, 1, _add("a", 3))
    (add,) = [action["add"] for action in _actions(uri, 1) if "add" in action]
    assert "baseRowId" not in add
    assert _highest(uri, 1) == []


def test_a_commit_is_later_than_the_one_before_although_the_clock_is_behind(tmp_path: Path) -> None:
    uri = _timed(tmp_path)
    log = Path(uri.removeprefix("file://")) / "_delta_log"
    (log / f"{1:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1, "inCommitTimestamp": LATER_MS}}) + "\n")
    _commit(uri, ONE, 1, _add("a", 3))
    assert list(_actions(uri, 2)[0]) == ["commitInfo"], "readers look for the time in the first line"
    assert _actions(uri, 2)[0]["commitInfo"]["inCommitTimestamp"] == LATER_MS + 1


def test_the_time_of_a_commit_with_a_checkpoint_is_read(tmp_path: Path) -> None:
    uri = _timed(tmp_path)
    log = Path(uri.removeprefix("file://")) / "_delta_log"
    (log / f"{1:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1, "inCommitTimestamp": LATER_MS}}) + "\n")
    DeltaTable(uri).create_checkpoint()
    _commit(uri, ONE, 1)
    assert _actions(uri, 2)[0]["commitInfo"]["inCommitTimestamp"] == LATER_MS + 1


def test_a_table_without_row_tracking_and_commit_timestamps_gets_neither(tmp_path: Path) -> None:
    uri = table_with(tmp_path, "appendOnly")
    _commit(uri, ONE, 1, _add("a", 3))
    assert [list(action) for action in _actions(uri, 1)] == [["commitInfo"], ["txn"], ["add"]]
    assert "inCommitTimestamp" not in _actions(uri, 1)[0]["commitInfo"]
    assert "baseRowId" not in _actions(uri, 1)[2]["add"]


def test_a_commit_that_sets_a_property_has_a_time_and_no_row_ids(tmp_path: Path) -> None:
    properties = {"delta.enableInCommitTimestamps": "true", "delta.enableRowTracking": "true"}
    uri = table_with(tmp_path, "inCommitTimestamp", "rowTracking", "domainMetadata", properties=properties)
    open_table(uri).set_property("complete_until", "10:00")
    assert [list(action) for action in _actions(uri, 1)] == [["commitInfo"], ["metaData"]]
    assert _actions(uri, 1)[0]["commitInfo"]["inCommitTimestamp"] > 0
