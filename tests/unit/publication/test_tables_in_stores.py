"""A publication to a table in an object store uses conditional creates, and works like one to a directory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.checkpoint.savepoint_files import OwnTable
from spark_jobs.protocol.delta_log import DELTA_LOG, commit_name
from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.errors import ConflictError, NotFoundError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.deleted_keys import add_checksums
from spark_jobs.publication.delta_rs import OpenTable, check_publishable, data_files, open_table, rows_by_file
from spark_jobs.publication.staged_files import missing_files
from spark_jobs.publication.table_log import TableLog
from spark_jobs.storage.object_store_kinds import object_store_kind
from spark_jobs.storage.settings_by_bucket import settings_for
from spark_jobs.storage.table_uris import table_files, table_uri
from tests.support.azurite import azurite
from tests.support.handwritten_table import table_with
from tests.support.lost_answers import lost_answers
from tests.support.object_store import object_store
from tests.support.opened_tables import copy_all

APP = AppId("app")


@pytest.fixture(scope="module", params=["in_s3", pytest.param("in_azure", marks=pytest.mark.azure)])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with object_store() if request.param == "in_s3" else azurite() as place:
        yield place


@pytest.fixture
def table(store: str, request: pytest.FixtureRequest) -> str:
    """Creates a table with one row, with a space in its path."""
    uri = table_uri(f"{store}/ware house/{request.function.__name__}")
    write_deltalake(uri, rows(0), storage_options=options(uri))
    return uri


def options(uri: str) -> dict[str, str]:
    return settings_for(uri).for_delta_rs()


def rows(*numbers: int) -> pa.Table:
    return pa.table({"number": pa.array(numbers, pa.int64())})


def public(uri: str) -> list[int]:
    found: list[int] = DeltaTable(uri, storage_options=options(uri)).to_pyarrow_table()["number"].to_pylist()
    return sorted(found)


def staged(uri: str, number: int) -> dict[str, Any]:
    """Writes a file with one row that is in no log."""
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(rows(number), sink)
    data = sink.getvalue().to_pybytes()
    table_files(uri).create(f"staged {number}.parquet", data)
    stats = '{"numRecords":1}'
    return {"path": f"staged%20{number}.parquet", "size": len(data), "partitionValues": {}, "modificationTime": 0, "stats": stats}


@pytest.mark.parametrize(("directory", "merged_by"), [("warehouse", Publisher.DELTA_RS), ("ware=house", Publisher.SPARK)])
def test_delta_rs_merges_onto_deletion_vectors_where_it_finds_them(
    store: str, tmp_path: Path, directory: str, merged_by: Publisher
) -> None:
    """It escapes the path of a deletion vector twice. No other commit reads one."""
    made, uri = table_files(table_with(tmp_path, "deletionVectors")), table_uri(f"{store}/{directory}/vectors")
    copy_all(made, table_files(uri), made.paths())
    chosen = [check_publishable(uri, mode)[1] for mode in (SinkMode.APPEND, SinkMode.COMPLETE, SinkMode.UPSERT)]
    assert chosen == [Publisher.DELTA_RS, Publisher.DELTA_RS, merged_by]


def test_staged_rows_become_public_once_with_their_checkpoint(table: str) -> None:
    add = staged(table, 7)
    assert public(table) == [0]
    assert missing_files(table, [add]) == []
    open_table(table).commit([add], APP, CheckpointId(3), {})
    assert public(table) == [0, 7]
    assert open_table(table).transaction_version(APP) == 3
    assert sorted(rows_by_file(table).values()) == [1, 1]
    assert (add["path"].replace("%20", " "), add["size"]) in data_files(table)


def test_the_second_of_two_publications_of_one_checkpoint_gets_a_conflict(table: str) -> None:
    first, second = open_table(table), open_table(table)
    first.commit([staged(table, 1)], APP, CheckpointId(1), {})
    with pytest.raises(ConflictError):
        second.commit([staged(table, 2)], APP, CheckpointId(1), {})
    assert public(table) == [0, 1]


def test_rows_that_another_writer_appends_meanwhile_stay(table: str) -> None:
    opened = open_table(table)
    write_deltalake(table, rows(5), mode="append", storage_options=options(table))
    opened.commit([staged(table, 1)], APP, CheckpointId(1), {})
    assert public(table) == [0, 1, 5]


def test_a_replacement_conflicts_with_every_other_commit(table: str) -> None:
    late = open_table(table)
    open_table(table).commit([staged(table, 1)], APP, CheckpointId(1), {}, replace=True)
    assert public(table) == [1]
    with pytest.raises(ConflictError):
        late.commit([staged(table, 2)], APP, CheckpointId(2), {}, replace=True)
    assert public(table) == [1]


def test_a_log_is_read_from_its_checkpoint(table: str) -> None:
    open_table(table).commit([staged(table, 1)], APP, CheckpointId(4), {})
    open_table(table).write_checkpoint()
    files = table_files(table)
    for version in range(2):
        files.delete(f"_delta_log/{version:020}.json")
    assert open_table(table).transaction_version(APP) == 4
    assert public(table) == [0, 1]


def test_missing_or_truncated_staged_files_are_named(table: str) -> None:
    whole = staged(table, 1)
    gone = whole | {"path": "gone.parquet"}
    place = table_files(table).url
    assert missing_files(table, [whole, gone, whole | {"size": 1}]) == [f"{place}/gone.parquet", f"{place}/staged 1.parquet"]


def test_a_missing_table_is_not_found(store: str) -> None:
    with pytest.raises(NotFoundError):
        open_table(f"{store}/nothing")


def test_a_commit_whose_answer_is_lost_is_made_once(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = object_store_kind(table).ENDPOINT
    endpoint = os.environ[variable]
    with lost_answers(endpoint) as line:
        monkeypatch.setenv(variable, f"{line.url}{urlsplit(endpoint).path}")
        away = OpenTable(table, log := TableLog(table_files(table).below(DELTA_LOG), table), log.newest())
        line.ending = commit_name(1).encode()
        away.commit([staged(table, 1)], APP, CheckpointId(1), {})
        assert line.lost == 1
    monkeypatch.undo()
    assert public(table) == [0, 1]
    assert open_table(table).facts.version == 1


def test_a_changed_byte_of_deleted_keys_in_a_store_is_found(table: str) -> None:
    files = table_files(table)
    add_checksums(files)
    write_deltalake(table, rows(1), storage_options=options(table), mode="append")
    add_checksums(files)
    assert public(table) == [0, 1], "checksum files are no files of the table"
    own = OwnTable(files, "tombstones/sink").files()
    assert len(own) == 4
    for file in own:
        assert file.look() is None
        data = bytearray(files.read(file.path))
        data[len(data) // 2] ^= 0x10
        files.replace(file.path, bytes(data))
        assert file.look() is not None, file.path
