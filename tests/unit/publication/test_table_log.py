"""A publication's view of a table's log. It shows what delta-rs shows, except the list of files, and no log that is gone."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, NotFoundError, StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.table_log import TableLog, TableState
from spark_jobs.storage.local import LocalFiles

SCHEMA = pa.schema([("id", pa.int64())])
ONE, OTHER = AppId("one"), AppId("other")


class RecordedFiles(LocalFiles):
    """Files that record their reads and writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()
        self.writes: list[str] = []
        self.before_reads: dict[str, Callable[[], None]] = {}
        """Called once before a file is read, by its name."""

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        self.before_reads.pop(path, bool)()
        self.reads[path] += 1
        yield from super().chunks(path)

    def sync(self, *paths: str) -> None:
        self.writes.append(f"sync {' '.join(paths)}")
        super().sync(*paths)

    def create(self, path: str, data: bytes) -> None:
        self.writes.append(f"create {path}")
        super().create(path, data)


class Table:
    """A table of delta-rs, its log, and our view of the log."""

    def __init__(self, directory: Path) -> None:
        self.uri, self.log = directory.as_uri(), directory / "_delta_log"
        self.files = RecordedFiles(self.log)
        self.looked = TableLog(self.files, self.uri)
        self.make()

    def make(self) -> None:
        DeltaTable.create(self.uri, SCHEMA)

    def drop(self) -> None:
        shutil.rmtree(self.log.parent)

    def append(self, app: AppId | None = None, version: int = 0) -> None:
        transactions = [Transaction(app, version)] if app else []
        write_deltalake(
            self.uri,
            pa.table({"id": [1]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=transactions),
        )

    def commits(self) -> list[Path]:
        return sorted(path for path in self.log.glob("*.json") if path.stem.isdigit())

    def anew(self) -> TableLog:
        return TableLog(LocalFiles(self.log), self.uri)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def assert_as_delta_rs_sees_it(state: TableState, uri: str, version: int | None = None) -> None:
    seen = DeltaTable(uri, version=version)
    metadata, protocol = seen.metadata(), seen.protocol()
    assert (state.version, state.table_id) == (seen.version(), str(metadata.id))
    assert (state.configuration, state.partition_by) == (metadata.configuration, tuple(metadata.partition_columns))
    assert (state.reader_version, state.writer_version) == (protocol.min_reader_version, protocol.min_writer_version)
    assert state.features == {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    assert json.loads(state.schema_text) == json.loads(seen.schema().to_json())
    assert [state.apps.get(app) for app in (ONE, OTHER)] == [seen.transaction_version(app) for app in (ONE, OTHER)]


STEPS = st.lists(
    st.sampled_from(["append", "publish", "publish of another", "property", "constraint", "checkpoint"]), min_size=1, max_size=12
)


@given(steps=STEPS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_every_version_is_read_as_delta_rs_reads_it(steps: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    table = Table(tmp_path_factory.mktemp("t") / "table")
    for number, step in enumerate(steps):
        if step == "append":
            table.append()
        elif step == "publish":
            table.append(ONE, number)
        elif step == "publish of another":
            table.append(OTHER, number)
        elif step == "property":
            DeltaTable(table.uri).alter.set_table_properties({"delta.logRetentionDuration": f"interval {number + 1} days"})
        elif step == "constraint":
            DeltaTable(table.uri).alter.add_constraint({f"c{number}": "id > 0"})
        else:
            DeltaTable(table.uri).create_checkpoint()
        assert_as_delta_rs_sees_it(table.looked.newest(), table.uri)
    assert_as_delta_rs_sees_it(table.anew().newest(), table.uri)
    for version in range(table.looked.newest().version + 1):
        for look in (table.looked, table.anew()):
            assert_as_delta_rs_sees_it(look.at(version), table.uri, version)


def test_a_second_read_reads_only_the_tail_of_the_log(table: Table) -> None:
    for _ in range(5):
        table.append()
    table.looked.newest()
    table.files.reads.clear()
    table.append(ONE, 7)
    assert table.looked.newest().apps == {ONE: 7}
    # the known commit must be there before and after
    assert table.files.reads == {f"{5:020}.json": 2, f"{6:020}.json": 1}


def test_a_table_that_is_replaced_while_its_new_commits_are_read_is_read_anew(table: Table) -> None:
    table.append(OTHER, 1)
    table.looked.newest()
    table.append(OTHER, 2)

    def replace_table() -> None:
        table.drop()
        table.make()
        table.append()
        table.append(ONE, 7)

    table.files.before_reads[f"{2:020}.json"] = replace_table
    assert table.looked.newest().apps == {ONE: 7}


def test_a_missing_table_is_not_found(table: Table, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing does not exist"):
        TableLog(LocalFiles(tmp_path / "nothing/_delta_log"), "nothing").newest()
    table.looked.newest()
    table.drop()
    with pytest.raises(NotFoundError, match="does not exist"):
        table.looked.newest()


@pytest.mark.parametrize("newer", [0, 1, 2, 3])
def test_a_table_that_was_created_again_is_another_table_at_any_version(table: Table, newer: int) -> None:
    table.append(ONE, 1)
    table.append(ONE, 2)
    old = table.looked.newest()
    table.drop()
    table.make()
    for _ in range(newer):
        table.append()
    found = table.looked.newest()
    assert found.table_id != old.table_id
    assert (found.version, found.apps) == (newer, {})
    assert_as_delta_rs_sees_it(found, table.uri)


def test_a_newest_commit_with_other_bytes_is_read_again(table: Table) -> None:
    table.append(ONE, 1)
    assert table.looked.newest().apps == {ONE: 1}
    newest = table.commits()[-1]
    newest.write_text(newest.read_text().replace('"version":1', '"version":5'))
    assert table.looked.newest().apps == {ONE: 5}


def test_a_log_that_was_cleaned_is_read_from_its_checkpoint(table: Table) -> None:
    table.append(ONE, 1)
    table.looked.newest()
    for _ in range(3):
        table.append()
    DeltaTable(table.uri).create_checkpoint()
    table.append(OTHER, 9)
    for path in table.commits()[:-1]:
        path.unlink()
    assert table.looked.newest().apps == {ONE: 1, OTHER: 9}
    with pytest.raises(NotFoundError, match="Version 1 of table"):
        table.looked.at(1)
    assert table.looked.at(4).apps == {ONE: 1}


def test_a_remembered_version_that_was_deleted_is_not_found(table: Table) -> None:
    for number in range(1, 5):
        table.append(ONE, number)
        table.looked.newest()
    assert table.looked.at(1).apps == {ONE: 1}
    DeltaTable(table.uri).create_checkpoint()
    table.commits()[1].unlink()
    with pytest.raises(NotFoundError, match="Version 1 of table"):
        table.looked.at(1)


def test_commits_that_were_deleted_before_they_were_read_come_from_the_checkpoint(table: Table) -> None:
    table.looked.newest()
    for number in range(1, 5):
        table.append(ONE, number)
    DeltaTable(table.uri).create_checkpoint()
    for path in table.commits()[1:-1]:
        path.unlink()
    assert table.looked.newest().apps == {ONE: 4}


def test_a_log_that_is_only_a_checkpoint_can_be_read(table: Table) -> None:
    table.append(ONE, 1)
    DeltaTable(table.uri).create_checkpoint()
    for path in table.commits():
        path.unlink()
    for _ in range(2):
        assert_as_delta_rs_sees_it(table.looked.newest(), table.uri)


@pytest.mark.parametrize("version", [2, 99])
def test_a_version_that_does_not_exist_is_not_found(table: Table, version: int) -> None:
    table.append()
    with pytest.raises(NotFoundError, match=f"Version {version} of table"):
        table.looked.at(version)


def test_a_log_that_lacks_a_commit_cannot_be_read(table: Table) -> None:
    for _ in range(3):
        table.append()
    table.commits()[1].unlink()
    with pytest.raises(StorageError, match="lacks a version"):
        table.looked.newest()


def test_a_line_that_is_no_json_cannot_be_read(table: Table) -> None:
    table.append()
    table.commits()[-1].write_text('{"txn":{"appId":"x"')
    with pytest.raises(StorageError, match="is not JSON"):
        table.looked.newest()


def test_a_checkpoint_that_is_no_parquet_cannot_be_read(table: Table) -> None:
    DeltaTable(table.uri).create_checkpoint()
    next(table.log.glob("*.parquet")).write_bytes(b"torn")
    with pytest.raises(StorageError, match="checkpoint"):
        table.looked.newest()


def test_lines_of_a_large_commit_that_is_read_in_parts_are_found(table: Table) -> None:
    adds = [{"add": {"path": f"{number:030}.parquet", "partitionValues": {}, "size": 1}} for number in range(40_000)]
    middle = {"txn": {"appId": ONE, "version": 4}}
    lines = [*adds[:20_000], middle, *adds[20_000:], {"txn": {"appId": OTHER, "version": 5}}]
    (table.log / f"{1:020}.json").write_text("\n".join(map(json.dumps, lines)))
    assert (table.log / f"{1:020}.json").stat().st_size > 2 << 20
    assert table.looked.newest().apps == {ONE: 4, OTHER: 5}


def split(table: Table, names: list[str]) -> None:
    """Divides a checkpoint of delta-rs into files with these names, like other writers do."""
    (whole,) = table.log.glob("*.checkpoint.parquet")
    rows = pq.read_table(whole)
    whole.unlink()
    size = -(-rows.num_rows // len(names))
    for number, name in enumerate(names):
        part = rows.slice(number * size, size)
        if name.endswith(".json"):
            actions = [
                {key: value for key, value in row.items() if value is not None} for row in part.to_pylist(maps_as_pydicts="lossy")
            ]
            (table.log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))
        else:
            pq.write_table(part, table.log / name, row_group_size=2)


V2 = UUID(int=7)


@pytest.mark.parametrize(
    "names",
    [
        [f"{4:020}.checkpoint.parquet"],
        [f"{4:020}.checkpoint.{part:010}.{3:010}.parquet" for part in (1, 2, 3)],
        [f"{4:020}.checkpoint.{V2}.parquet"],
        [f"{4:020}.checkpoint.{V2}.json"],
    ],
    ids=["one file", "several parts", "version 2", "version 2 in JSON"],
)
def test_every_kind_of_checkpoint_is_read(table: Table, names: list[str]) -> None:
    table.append(ONE, 1)
    DeltaTable(table.uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})
    table.append(OTHER, 8)
    table.append(ONE, 3)
    expected = table.anew().newest()
    DeltaTable(table.uri).create_checkpoint()
    split(table, names)
    for path in table.commits()[:-1]:
        path.unlink()
    assert table.looked.newest() == expected
    assert expected.apps == {ONE: 3, OTHER: 8}


def test_a_checkpoint_that_lacks_a_part_is_ignored(table: Table) -> None:
    table.append(ONE, 1)
    DeltaTable(table.uri).create_checkpoint()
    names = [f"{1:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2)]
    split(table, names)
    (table.log / names[0]).unlink()
    assert table.looked.newest().apps == {ONE: 1}
    assert table.looked.commits_since_checkpoint == 1


def test_a_commit_follows_the_version_that_was_read(table: Table) -> None:
    state = table.looked.newest()
    table.looked.create(state, b'{"txn":{"appId":"one","version":1}}\n')
    assert_as_delta_rs_sees_it(table.looked.newest(), table.uri)
    with pytest.raises(AlreadyExistsError):
        table.looked.create(state, b'{"txn":{"appId":"one","version":2}}\n')
    assert table.looked.newest().apps == {ONE: CheckpointId(1)}


def test_a_commit_is_durable_before_the_next_commit_is_made(table: Table) -> None:
    table.append()  # delta-rs syncs no file
    table.looked.create(table.looked.newest(), b"{}\n")
    assert table.files.writes == [f"sync {1:020}.json", f"create {2:020}.json"]


def test_a_dropped_table_gets_no_commit_and_is_not_created_again(table: Table) -> None:
    state = table.looked.newest()
    table.drop()
    with pytest.raises(ConflictError, match="log of table .* was replaced"):
        table.looked.create(state, b"{}\n")
    assert not table.log.exists()


def test_a_table_that_was_created_again_gets_no_commit(table: Table) -> None:
    table.append()
    state = table.looked.newest()
    table.drop()
    table.make()
    table.append()
    with pytest.raises(ConflictError, match="log of table .* was replaced"):
        table.looked.create(state, b"{}\n")
    assert len(table.commits()) == 2


def test_the_number_of_commits_and_files_is_known(table: Table) -> None:
    for _ in range(3):
        table.append()
    table.looked.newest()
    assert (table.looked.commits_since_checkpoint, table.looked.file_count) == (3, 3)
    DeltaTable(table.uri).create_checkpoint()
    table.append()
    for look in (table.looked, table.anew()):
        look.newest()
        assert (look.commits_since_checkpoint, look.file_count) == (1, 4)


def test_two_versions_differ_only_in_rows_if_nothing_but_rows_and_app_ids_changed(table: Table) -> None:
    before = table.looked.newest()
    table.append(ONE, 1)
    assert table.looked.newest().differs_only_in_rows(before)
    changes: list[dict[str, Any]] = [
        {"table_id": "another"},
        {"schema_text": "{}"},
        {"partition_by": ("id",)},
        {"configuration": {"delta.appendOnly": "true"}},
        {"features": frozenset({"appendOnly"})},
        {"reader_version": 3},
        {"writer_version": 7},
    ]
    assert not any(replace(before, **change).differs_only_in_rows(before) for change in changes)
