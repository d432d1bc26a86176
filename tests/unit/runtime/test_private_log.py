"""A stage's private Delta log, read back by itself and by delta-rs."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.protocol.errors import AlreadyExistsError, UnsupportedTableError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.private_log import PrivateLog, StagedBatch
from spark_jobs.storage.local import LocalFiles

SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
METADATA = {
    "id": "the-table",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(SCHEMA),
    "partitionColumns": [],
    "configuration": {},
    "createdTime": 1,
}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
FACTS = {"table_id": "the-table", "schema_sha256": "s", "protocol_sha256": "p"}
TABLE = "file:///data/my%20table"


def add(name: str, rows: int = 2) -> dict[str, object]:
    stats = json.dumps({"numRecords": rows})
    return {"path": name, "partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": True, "stats": stats}


def staged(batch: int, *names: str, sha256: str = "s", newest: int = 7) -> StagedBatch:
    return StagedBatch(BatchId(batch), sha256, 2 * len(names), 1, {"events": newest}, tuple(add(name) for name in names))


@pytest.fixture
def log(tmp_path: Path) -> PrivateLog:
    log = PrivateLog(LocalFiles(tmp_path), "log", TABLE)
    log.begin(METADATA, PROTOCOL, FACTS)
    return log


def test_a_batch_reads_back_as_it_was_staged(log: PrivateLog) -> None:
    log.append(staged(0, "a%20b.parquet", "c.parquet"))
    assert log.read(BatchId(0)) == staged(0, "a%20b.parquet", "c.parquet")


def test_a_batch_that_is_not_staged_has_no_version(log: PrivateLog) -> None:
    assert log.read(BatchId(0)) is None


def test_the_first_result_of_a_batch_stands(log: PrivateLog) -> None:
    log.append(staged(0, "first.parquet"))
    with pytest.raises(AlreadyExistsError):
        log.append(staged(0, "second.parquet"))
    assert log.read(BatchId(0)) == staged(0, "first.parquet")


def test_a_batch_without_rows_has_an_empty_version(log: PrivateLog) -> None:
    log.append(staged(0))
    assert log.latest() == 1
    assert log.read(BatchId(0)) == staged(0)


def test_batch_ids_that_never_reached_the_sink_get_empty_versions(log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(3, "b.parquet"))
    assert [batch.adds == () for batch in log.between(BatchId(-1), BatchId(3))] == [False, True, True, False]
    assert log.latest() == 4


def test_beginning_again_changes_nothing(tmp_path: Path, log: PrivateLog) -> None:
    before = (tmp_path / "log/_delta_log/00000000000000000000.json").read_bytes()
    log.begin(METADATA | {"schemaString": "{}"}, PROTOCOL, FACTS)
    assert (tmp_path / "log/_delta_log/00000000000000000000.json").read_bytes() == before


def test_a_log_is_not_gone_on_with_for_a_table_that_was_changed(log: PrivateLog) -> None:
    with pytest.raises(UnsupportedTableError, match="schema_sha256") as caught:
        log.begin(METADATA, PROTOCOL, FACTS | {"schema_sha256": "other"})
    assert caught.value.evidence["expected"] == FACTS


def test_delta_reads_it_as_a_table_whose_files_lie_elsewhere(tmp_path: Path, log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(1))
    table = DeltaTable(str(tmp_path / "log"))
    assert [str(table.version()), str(table.metadata().id)] == ["2", log.table_id]
    assert table.get_add_actions().column("path").to_pylist() == [f"{TABLE}/a.parquet"]


def test_two_logs_have_two_ids(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert PrivateLog(files, "one", TABLE).table_id != PrivateLog(files, "two", TABLE).table_id
