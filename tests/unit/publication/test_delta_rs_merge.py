"""A merge without a JVM applies all changes of each key, in any order and division into batches."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from spark_jobs.checkpoint.savepoint_files import OwnTable
from spark_jobs.protocol.documents import Publish, Publisher, SinkMode
from spark_jobs.protocol.errors import ConflictError, SparkRequiredError, UnsupportedTableError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.publication import deleted_keys
from spark_jobs.publication.delta_rs import data_files, open_table
from spark_jobs.publication.delta_rs_merge import publish_merge, why_spark
from spark_jobs.publication.features import merge_obstacles
from spark_jobs.publication.merge_rows import RowOrder
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.local import LocalFiles
from tests.support.damage import flipped
from tests.support.keyed_changes import DELETES, KEYS, OTHERS, SCHEMA, Row, changes_of_one_case, inserted, upserted
from tests.support.merge_site import APP, MergeSite, schema_of
from tests.support.object_store import object_store
from tests.support.sink_kinds import Kind, Reference, cut_of, graves_in
from tests.support.staged_pipeline import HOURLY, StagedPipeline, path_of
from tests.support.staged_pipeline import Row as Pair
from tests.support.systems import quick

CASES = 60
CASE_KEYS = ("number", *KEYS)
COLUMNS = {
    "number": "long",
    "pair": "long",
    "part": "string",
    "seq": "long",
    "amount": "double",
    "gone": "boolean",
    "name": "string",
}
READ = (*CASE_KEYS, "seq", *OTHERS)
CHANGES = pa.schema([pa.field("number", pa.int64()), *SCHEMA])
Change = dict[str, Any]
Answer = Callable[[pa.Table], Counter[Row]]
MODES: Mapping[str, tuple[SinkMode, bool, Answer]] = {
    "upsert": (SinkMode.UPSERT, True, lambda changes: upserted(changes, CASE_KEYS)),
    "insert": (SinkMode.INSERT, True, lambda changes: inserted(changes, "publication, seq NULLS FIRST", CASE_KEYS)),
    "insert by batch": (SinkMode.INSERT, False, lambda changes: inserted(changes, "batch", CASE_KEYS)),
}
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 60))]


def site_of(root: Path, mode: SinkMode = SinkMode.UPSERT, *, sequence: bool = True, **options: Any) -> MergeSite:
    deletes = DELETES if sequence and mode is SinkMode.UPSERT else None
    return MergeSite(root, mode, COLUMNS, keys=CASE_KEYS, sequence_by="seq" if sequence else None, deletes=deletes, **options)


def publications(draw: Random) -> Iterator[list[list[Change]]]:
    """Yields publications with batches of changes in random order. Some publications are repeated, as by a retry."""
    cut: list[list[list[Change]]] = [[[] for _ in range(draw.randint(1, 3))] for _ in range(4)]
    for number in range(CASES):
        for change in changes_of_one_case(draw):
            draw.choice(draw.choice(cut)).append({"number": number, **change})
    for batches in cut:
        yield batches
        if draw.random() < 0.3:
            yield batches


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as place:
        yield place


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in a directory", "partitioned", "in a store"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_table_equals_the_answer_over_all_changes(
    tmp_path: Path, name: str, seed: int, where: str, request: pytest.FixtureRequest
) -> None:
    mode, sequence, answer = MODES[name]
    place = f"{request.getfixturevalue('store')}/{tmp_path.name}" if where == "in a store" else None
    partition_by = ["part"] if where == "partitioned" else []
    site = site_of(tmp_path, mode, sequence=sequence, partition_by=partition_by, store=place)
    batch, public = 0, list[Change]()
    for number, batches in enumerate(publications(Random(seed))):
        lines = []
        for changes in batches:
            batch += 1
            lines.append(site.stage(pa.Table.from_pylist(changes, CHANGES), batch))
            public += [{**change, "batch": batch, "publication": number} for change in changes]
        site.publish(lines)
        every = pa.Table.from_pylist(public, pa.schema([*CHANGES, ("batch", pa.int64()), ("publication", pa.int64())]))
        assert site.rows(READ) == answer(every), f"publication {number}"
    assert site.rows().total() > CASES // 2, "a table with few rows proves nothing"


def change(seq: int, name: str | None = "a", number: int = 0, **others: Any) -> Change:
    """A change of a key. A change without a name is a delete."""
    return {"number": number, "pair": 1, "part": "x", "seq": seq, "gone": name is None, "name": name, "amount": None, **others}


def staged(site: MergeSite, *changes: Change) -> list[dict[str, Any]]:
    return [site.stage(pa.Table.from_pylist(list(changes), CHANGES))]


def names(site: MergeSite) -> list[Any]:
    return sorted(name for (name,) in site.rows(["name"]).elements())


def test_a_publication_that_changes_no_row_still_counts_as_public(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    lines = staged(site, change(5, "b"))
    site.publish(lines)
    for late in ([], staged(site, change(1)), staged(site, change(5, None, number=9))):
        before = site.version
        site.publish(late)
        assert site.version == before + 1
        assert open_table(site.uri).transaction_version(APP) == site.checkpoint
    assert names(site) == ["b"]


def test_a_commit_of_another_writer_since_the_table_was_opened_is_a_conflict(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    table, lines = open_table(site.uri), staged(site, change(5, "b"))
    theirs = pa.Table.from_pylist([change(1)], CHANGES).select(site.schema.names).cast(site.schema)
    write_deltalake(site.uri, theirs, mode="append")
    with pytest.raises(ConflictError):
        publish_merge(table, site.cut(), lines, APP, CheckpointId(1), {})
    assert open_table(site.uri).transaction_version(APP) is None
    site.publish(lines)
    assert names(site) == ["b"], "their row is compared like one of ours"


def test_an_append_of_rows_with_other_keys_is_a_conflict_too(tmp_path: Path) -> None:
    """delta-rs would commit after these rows, based on an older read of the table."""
    site = site_of(tmp_path)
    site.publish(staged(site, change(1)))
    table, lines = open_table(site.uri), staged(site, change(5, "b"))
    theirs = pa.Table.from_pylist([change(1, number=77)], CHANGES).select(site.schema.names).cast(site.schema)
    write_deltalake(site.uri, theirs, mode="append")
    with pytest.raises(ConflictError):
        publish_merge(table, site.cut(), lines, APP, CheckpointId(2), {})


def test_only_one_of_two_publishers_that_read_the_same_version_wins(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    first, second = open_table(site.uri), open_table(site.uri)
    lines = staged(site, change(1), change(2, None, number=1))
    publish_merge(first, site.cut(), lines, APP, CheckpointId(1), {})
    with pytest.raises(ConflictError):
        publish_merge(second, site.cut(), lines, APP, CheckpointId(1), {})
    assert names(site) == ["a"]


def test_deleted_keys_that_were_recorded_before_a_death_are_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path)
    lines = staged(site, change(3, None), change(1))
    with monkeypatch.context() as patch:
        patch.setattr(RowOrder, "risen", lambda *_: pytest.fail("dies between the two merges"))
        with pytest.raises(pytest.fail.Exception):
            site.publish(lines)
    graves = open_table(str(site.rule.tombstones)).facts.version
    publish_merge(open_table(site.uri), site.cut(), lines, APP, site.checkpoint, {})
    assert open_table(str(site.rule.tombstones)).facts.version == graves == 1
    site.publish(staged(site, change(2), change(4, "later", number=1)))
    assert names(site) == ["later"]


def test_the_log_names_the_checkpoint_that_a_merge_published(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.publish(staged(site, change(1)))
    (info,) = [action["commitInfo"] for action in list(open_table(site.uri).commits())[-1] if "commitInfo" in action]
    assert (info["operation"], json.loads(info["userMetadata"])) == ("MERGE", {"checkpoint": 1})


def test_the_error_for_rows_that_the_table_refuses_has_none_of_their_values(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    made = json.loads(schema_of(COLUMNS).to_json())
    made["fields"] = [field | {"nullable": field["name"] != "amount"} for field in made["fields"]]
    DeltaTable.create((tmp_path / "strict").as_uri(), Schema.from_json(json.dumps(made)))
    strict = open_table((tmp_path / "strict").as_uri())
    with pytest.raises(UnsupportedTableError, match="does not accept 1 of the staged rows") as error:
        publish_merge(strict, site.cut(), staged(site, change(1, "secret")), APP, CheckpointId(1), {})
    assert "secret" not in str(error.value)
    assert open_table(strict.facts.uri).facts.version == 0


def test_the_files_of_a_merge_are_durable_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, synced = site_of(tmp_path), set[str]()
    real = LocalFiles.sync

    def sync(files: LocalFiles, *paths: str) -> None:
        synced.update(paths)
        real(files, *paths)

    monkeypatch.setattr(LocalFiles, "sync", sync)
    site.publish(staged(site, change(1)))
    added = {action["add"]["path"] for action in list(open_table(site.uri).commits())[-1] if "add" in action}
    assert added
    assert synced >= added | {"00000000000000000001.json"}


def reasons(site: MergeSite, *, replace: bool = False, **rule: Any) -> list[str]:
    cut = site.cut()
    assert cut.merge is not None
    cut = cut.model_copy(update={"merge": cut.merge.model_copy(update=rule)})
    return why_spark(cut, open_table(site.uri), staged(site, change(1)), replace=replace)


def test_spark_merges_tables_that_are_larger_than_the_limit_of_the_sink(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert reasons(site) == []
    site.publish(staged(site, change(1)))
    size_bytes = sum(size for _, size in data_files(site.uri)) + staged(site, change(1))[0]["add"]["size"]
    assert reasons(site, spark_above_bytes=size_bytes) == []
    assert reasons(site, spark_above_bytes=size_bytes - 1) == [
        f"it reads {size_bytes} bytes, and spark_merge_above is {size_bytes - 1}"
    ]
    assert reasons(site, spark_above_bytes=0) != []


def test_files_that_merges_have_replaced_do_not_make_a_table_large(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    for seq in range(1, 6):
        site.publish(staged(site, change(seq)))
        open_table(site.uri, 1)
        assert open_table(site.uri).file_count == len(data_files(site.uri)) == 1


def test_spark_merges_if_only_spark_can_evaluate_the_rule(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert reasons(site, apply_as_deletes="lower(name) = 'gone'") == [
        "apply_as_deletes=\"lower(name) = 'gone'\" can only be evaluated by Spark"
    ]
    assert reasons(site, replace=True) == ["it replaces the rows of the table"]


def test_spark_merges_rows_that_were_staged_with_another_type(tmp_path: Path) -> None:
    site = MergeSite(tmp_path, SinkMode.UPSERT, COLUMNS, keys=CASE_KEYS)
    DeltaTable.create((tmp_path / "wider").as_uri(), schema_of(COLUMNS | {"seq": "decimal(20,0)"}))
    site.uri = (tmp_path / "wider").as_uri()
    assert reasons(site) == ["column seq was staged as long"]


def test_rows_are_inserted_into_a_table_that_is_append_only(tmp_path: Path) -> None:
    site = site_of(tmp_path, SinkMode.INSERT, configuration={"delta.appendOnly": "true"})
    for number in (1, 2):
        site.publish(staged(site, change(number, number=1), change(number, number=number)))
    assert names(site) == ["a", "a"]


@pytest.mark.parametrize(
    ("kind", "metadata", "reason"),
    [
        ("string", {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}, "__CHAR_VARCHAR_TYPE_STRING on column c"),
        ("string", {"CURRENT_DEFAULT": "'x'"}, "CURRENT_DEFAULT on column c"),
        ("long", {"delta.generationExpression": "id + 1"}, "delta.generationExpression on column c"),
        ({"type": "array", "elementType": "long", "containsNull": True}, {}, "column c of type array"),
        ("variant", {}, "column c of type variant"),
        ("string", {"comment": "for people", "delta.columnMapping.physicalName": "col-1"}, None),
    ],
)
def test_spark_merges_into_a_table_with_special_column_metadata(kind: Any, metadata: dict[str, Any], reason: str | None) -> None:
    field = {"name": "c", "type": kind, "nullable": True, "metadata": metadata}
    assert merge_obstacles([field], {}) == ([reason] if reason else [])


def test_spark_merges_into_a_table_with_constraints_and_columns_by_id() -> None:
    configuration = {"delta.constraints.small": "id < 9", "delta.columnMapping.mode": "id", "delta.appendOnly": "false"}
    assert merge_obstacles([], configuration) == ["delta.constraints.small", "delta.columnMapping.mode=id"]


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    """A pipeline with nothing staged, whose home can be locked."""
    made = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    made.make_table(HOURLY)
    return made


def keyed(pipeline: StagedPipeline, **rule: Any) -> Mapping[str, Any]:
    """The cut of a sink that merges rows by key, with deletes."""
    cut = cut_of(pipeline, Publisher.DELTA_RS, Kind.SEQUENCED)
    return {**cut, "merge": cut["merge"].model_copy(update={"apply_as_deletes": "day IN ('3!', '6!')"} | rule)}


def test_checkpoints_are_merged_in_order_and_each_only_once(pipeline: StagedPipeline) -> None:
    cut, expected = keyed(pipeline), Reference(Kind.SEQUENCED)
    staged: list[list[Pair]] = [
        [(1, "1"), (2, "2"), (2, "5")],
        [(1, "3!"), (3, None)],
        [(1, "2"), (2, "4")],
        [(1, "3"), (2, "6!")],
    ]
    for rows in staged:
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
        if rows[0] != (1, "3!"):  # the next publication publishes this checkpoint
            for _ in range(2):
                publish(pipeline.files)
        expected.publish(rows)
    assert pipeline.rows(HOURLY) == sorted(expected.rows, key=str)
    assert graves_in(cut) == expected.graves
    assert pipeline.commits(HOURLY) == [1, 2, 3, 4]


def test_a_merge_that_is_too_large_without_spark_writes_nothing(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "1")]}, cut=keyed(pipeline, spark_above_bytes=0))
    with pytest.raises(SparkRequiredError, match="Sink hourly is published by Spark"):
        publish(pipeline.files)
    assert pipeline.commits(HOURLY) == []


def test_deleted_keys_are_folded_without_spark(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "FOLD_VERSIONS", 3)
    cut = keyed(pipeline, apply_as_deletes="id > 0")
    for number in range(1, 13):
        pipeline.checkpoint({HOURLY: [(number, "1")]}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
        publish(pipeline.files)
    assert graves_in(cut) == dict.fromkeys(range(1, 13), "1")
    graves = path_of(cut["merge"].tombstones)
    assert len(list(graves.glob("_delta_log/*.json"))) < 9, "each of 12 publications and 4 compactions made one"
    assert len(list(graves.glob("*.parquet"))) < 9


def test_after_each_publication_a_flipped_byte_of_any_file_of_deleted_keys_is_found(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_keys, "FOLD_VERSIONS", 3)
    cut = keyed(pipeline, apply_as_deletes="id > 0")
    graves = path_of(cut["merge"].tombstones)
    for number in range(1, 8):
        pipeline.checkpoint({HOURLY: [(number, "1")]}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
        publish(pipeline.files)
        own = OwnTable(quick(graves), "tombstones/hourly")
        assert [file.path for file in own.files() if file.look()] == []
        for file in own.files():
            path = graves / file.path
            with flipped(path, path.stat().st_size // 2):
                assert file.look() is not None, file.path
    assert list(graves.glob("_delta_log/*.checkpoint.parquet")), "it was folded"
