import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.errors import (
    ConflictError,
    NotFoundError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.delta_rs import check_publishable, open_table, refuse_lossy
from spark_jobs.publication.features import APPEND_FEATURES, DELTA_RS_FEATURES, SPARK_FEATURES
from spark_jobs.publication.publisher import WITHOUT_SPARK
from tests.support.handwritten_table import table_with
from tests.support.staged_pipeline import HOURLY, StagedPipeline, path_of
from tests.support.table_features import REFUSED, Refused

APP = AppId("pipeline/incarnation/sink")


def k(number: int) -> CheckpointId:
    return CheckpointId(number)


@pytest.mark.parametrize("feature", sorted(APPEND_FEATURES))
def test_a_table_with_a_committable_feature_is_accepted_and_committed_to(tmp_path: Path, feature: str) -> None:
    uri = table_with(tmp_path, feature)
    check_publishable(uri)
    open_table(uri).commit((), APP, k(1), {})
    assert open_table(uri).transaction_version(APP) == 1


@pytest.mark.parametrize("feature", sorted(APPEND_FEATURES - DELTA_RS_FEATURES))
def test_a_replacement_in_a_table_that_delta_rs_can_only_append_to_is_refused(tmp_path: Path, feature: str) -> None:
    uri = table_with(tmp_path, feature)
    assert [check_publishable(uri, mode)[1] for mode in (SinkMode.APPEND, SinkMode.COMPLETE, SinkMode.UPSERT)] == [
        Publisher.DELTA_RS,
        Publisher.SPARK,
        Publisher.SPARK,
    ]
    with pytest.raises(UnsupportedTableError, match=feature):
        open_table(uri).commit((), APP, k(1), {}, replace=True)
    assert open_table(uri).facts.version == 0


@pytest.mark.parametrize(
    "feature",
    [
        "coordinatedCommits-preview",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "identityColumns",
        "somethingOfTomorrow",
    ],
)
def test_a_table_with_a_feature_that_delta_rs_cannot_commit_is_left_to_spark_or_refused(tmp_path: Path, feature: str) -> None:
    uri = table_with(tmp_path, "appendOnly", feature)
    if feature in SPARK_FEATURES:
        assert check_publishable(uri)[1] is Publisher.SPARK
    else:
        with pytest.raises(UnsupportedTableError) as refused:
            check_publishable(uri)
        assert refused.value.evidence["unsupported"] == [feature]
    with pytest.raises(UnsupportedTableError, match=feature):
        open_table(uri).commit((), APP, k(1), {})
    assert open_table(uri).facts.version == 0


@pytest.mark.parametrize("mode", list(SinkMode))
@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.evidence)
def test_a_table_that_the_page_calls_refused_is_refused_in_every_mode(tmp_path: Path, refused: Refused, mode: SinkMode) -> None:
    uri = table_with(
        tmp_path,
        *refused.protocol,
        writer=refused.writer_version,
        field={"metadata": dict(refused.field_metadata)},
        properties=dict(refused.configuration),
    )
    with pytest.raises(UnsupportedTableError) as error:
        check_publishable(uri, mode)
    assert refused.evidence in error.value.failed


def test_delta_rs_publishes_all_modes_except_histories(tmp_path: Path) -> None:
    uri = table_with(tmp_path, "appendOnly")
    chosen = {mode: check_publishable(uri, mode)[1] for mode in SinkMode}
    assert chosen == {
        SinkMode.APPEND: Publisher.DELTA_RS,
        SinkMode.COMPLETE: Publisher.DELTA_RS,
        SinkMode.UPSERT: Publisher.DELTA_RS,
        SinkMode.INSERT: Publisher.DELTA_RS,
        SinkMode.HISTORY: Publisher.SPARK,
    }


def test_identity_columns_of_an_old_protocol_are_refused(tmp_path: Path) -> None:
    identity = {"metadata": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}}
    with pytest.raises(UnsupportedTableError, match="identityColumns"):
        check_publishable(table_with(tmp_path, writer=6, reader=1, field=identity))


@pytest.mark.parametrize("writer", [1, 2, 3, 4, 5])
def test_old_protocols_without_identity_columns_are_accepted(tmp_path: Path, writer: int) -> None:
    check_publishable(table_with(tmp_path, writer=writer))


def test_a_table_that_forgets_transaction_numbers_is_refused(tmp_path: Path) -> None:
    uri = table_with(tmp_path, properties={"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(UnsupportedTableError, match="setTransactionRetentionDuration"):
        check_publishable(uri)


def test_a_catalog_managed_table_is_refused_by_name(tmp_path: Path) -> None:
    uri = table_with(tmp_path, "catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck")
    with pytest.raises(UnsupportedTableError, match="catalogManaged"):
        check_publishable(uri)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a b", True),
        ("ü#?+=:&'\"{}<>", True),
        ("50%", True),
        ("a%20b", False),
        ("a[1]", False),
        ("a^b", False),
        ("a|b", False),
        ("a\\b", False),
        ("a\nb", False),
    ],
)
def test_the_path_of_a_table_is_encoded_correctly_or_refused(tmp_path: Path, name: str, allowed: bool) -> None:
    uri = (tmp_path / name).as_uri()
    if not allowed:
        with pytest.raises(UnsupportedTableError, match="in its path"):
            check_publishable(uri)
        return
    write_deltalake(uri, pa.table({"id": [1]}))
    open_table(uri).commit((), APP, k(1), {})
    assert (open_table(uri).transaction_version(APP), os.listdir(tmp_path)) == (1, [name])


@pytest.mark.parametrize("uri", ["/data/t", "file:t", "file://host/t", "file:///t?x=1", ""])
def test_a_text_that_is_not_a_table_uri_is_refused(uri: str) -> None:
    with pytest.raises(UnsupportedTableError, match="only tables in directories and in stores can"):
        check_publishable(uri)


def test_a_local_uri_as_hadoop_writes_it_is_the_same_table(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    assert open_table(uri.replace("file:///", "file:/")).facts.table_id == open_table(uri).facts.table_id


def test_a_missing_table_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_table((tmp_path / "nothing").as_uri())
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        open_table((tmp_path / "empty").as_uri())


def test_an_empty_commit_advances_the_version_and_carries_its_evidence(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    open_table(uri).commit((), APP, k(7), {"checkpoint": 7})
    assert open_table(uri).transaction_version(APP) == 7
    newest = DeltaTable(uri).history(1)[0]
    assert json.loads(newest["userMetadata"]) == {"checkpoint": 7}
    assert pipeline.rows(HOURLY) == []


@pytest.mark.parametrize("feature", ["appendOnly", *sorted(APPEND_FEATURES - DELTA_RS_FEATURES)])
def test_the_version_survives_checkpoints_of_the_log(tmp_path: Path, feature: str) -> None:
    uri = table_with(tmp_path, feature, properties={"delta.checkpointInterval": "5"})
    for number in range(1, 13):
        open_table(uri).commit((), APP, k(number), {})
        WITHOUT_SPARK.keep_log_short(open_table(uri))
    log = tmp_path / "t/_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    for path in sorted(log.glob("*.json"))[:9]:
        path.unlink()
    assert open_table(uri).transaction_version(APP) == 12


@pytest.mark.parametrize(("features", "left"), [(["appendOnly"], ["2"]), (["checkpointProtection"], ["0", "1", "2"])])
def test_a_checkpoint_removes_old_entries_unless_the_log_is_protected(
    tmp_path: Path, features: list[str], left: list[str]
) -> None:
    uri = table_with(tmp_path, *features, properties={"delta.logRetentionDuration": "interval 1 days"})
    open_table(uri).commit((), APP, k(1), {})
    log = tmp_path / "t/_delta_log"
    for path in log.glob("*.json"):
        os.utime(path, (0, 0))
    open_table(uri).commit((), APP, k(2), {})
    open_table(uri).write_checkpoint()
    assert sorted(path.stem.lstrip("0") or "0" for path in log.glob("*.json")) == left


@pytest.mark.parametrize("second", [7, 8])
def test_only_one_of_two_publishers_that_read_the_same_version_wins(pipeline: StagedPipeline, second: int) -> None:
    uri = pipeline.tables[HOURLY]
    one, other = open_table(uri), open_table(uri)
    one.commit((), APP, k(7), {})
    with pytest.raises(ConflictError):
        other.commit((), APP, k(second), {})
    assert pipeline.commits(HOURLY) == [7]


def test_reading_with_one_handle_and_committing_with_another_would_publish_twice(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    looked = [open_table(uri).transaction_version(APP) for _ in range(2)]
    for reached in looked:
        if reached is None:
            open_table(uri).commit((), APP, k(7), {})
    assert pipeline.commits(HOURLY) == [7, 7]


def test_publishers_of_other_pipelines_and_foreign_appends_do_not_conflict(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    handle = open_table(uri)
    open_table(uri).commit((), AppId("another"), k(7), {})
    write_deltalake(uri, pa.table({"id": [9], "day": ["x"]}), mode="append")
    handle.commit((), APP, k(7), {})
    assert open_table(uri).transaction_version(APP) == 7
    assert pipeline.rows(HOURLY) == [(9, "x")]


@pytest.mark.parametrize("change", ["schema", "constraint", "property"])
def test_a_change_of_the_table_after_it_was_opened_conflicts(pipeline: StagedPipeline, change: str) -> None:
    uri = pipeline.tables[HOURLY]
    handle = open_table(uri)
    if change == "schema":
        write_deltalake(uri, pa.table({"id": [9], "day": ["x"], "new": [1]}), mode="append", schema_mode="merge")
    elif change == "constraint":
        DeltaTable(uri).alter.add_constraint({"positive": "id > 0"})
    else:
        DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(ConflictError):
        handle.commit((), APP, k(7), {})
    assert open_table(uri).transaction_version(APP) is None


def test_setting_a_property_leaves_other_metadata_and_concurrent_appends(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    configuration = {"delta.enableChangeDataFeed": "true"}
    rows = pa.table({"id": [1], "day": ["x"]})
    write_deltalake(uri, rows, name="views", description="Views.", partition_by=["day"], configuration=configuration)
    table = DeltaTable(uri)
    before = table.metadata()
    table.create_checkpoint()  # the metadata is read from it
    open_table(table.table_uri)
    handle = open_table(table.table_uri)
    write_deltalake(uri, rows, mode="append")
    handle.set_property("complete_until", "10:00")
    open_table(table.table_uri).set_property("complete_until", "11:00")
    now = DeltaTable(uri)
    after = now.metadata()
    assert after.configuration == {**configuration, "complete_until": "11:00"}
    same = ["id", "name", "description", "partition_columns", "created_time"]
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert (now.schema(), now.count()) == (table.schema(), 2)


def test_a_property_that_has_the_value_is_not_set_again(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    handle = open_table(uri)
    for table in (handle, handle, open_table(uri)):
        table.set_property("complete_until", "10:00")
    assert open_table(uri).facts.version == 1


def test_a_property_is_not_set_if_the_table_was_changed_since_it_was_opened(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    handle = open_table(uri)
    DeltaTable(uri).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConflictError):
        handle.set_property("complete_until", "10:00")
    assert "complete_until" not in DeltaTable(uri).metadata().configuration


def test_a_property_of_a_table_with_a_feature_that_only_spark_writes_is_refused(tmp_path: Path) -> None:
    uri = table_with(tmp_path, "icebergCompatV2")
    with pytest.raises(UnsupportedTableError, match="icebergCompatV2.*only Spark can set a property"):
        open_table(uri).set_property("complete_until", "10:00")
    assert open_table(uri).facts.version == 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("appended", [0, 1, 2])
def test_a_table_that_was_created_again_after_it_was_opened_gets_no_commit(
    pipeline: StagedPipeline, appended: int, replace: bool
) -> None:
    uri, row = pipeline.tables[HOURLY], pa.table({"id": [9], "day": ["x"]})
    write_deltalake(uri, row, mode="append")
    handle = open_table(uri)
    shutil.rmtree(path_of(uri))
    pipeline.make_table(HOURLY)
    for _ in range(appended):
        write_deltalake(uri, row, mode="append")
    with pytest.raises(ConflictError):
        handle.commit((), APP, k(7), {}, replace=replace)
    assert open_table(uri).facts.version == appended
    assert len(pipeline.rows(HOURLY)) == appended


def test_facts_of_a_table_change_only_with_the_table(pipeline: StagedPipeline) -> None:
    uri = pipeline.tables[HOURLY]
    before = open_table(uri).facts
    write_deltalake(uri, pa.table({"id": [9], "day": ["x"]}), mode="append")
    after = open_table(uri).facts
    assert after.shape == before.shape
    assert (before.partition_by, before.version, after.version) == (("day",), 0, 1)
    DeltaTable(uri).alter.add_constraint({"positive": "id > 0"})
    constrained = open_table(uri).facts
    assert constrained.shape.configuration == {"delta.constraints.positive": "id > 0"}
    DeltaTable(uri).alter.add_constraint({"small": "id < 10"})  # the protocol supports constraints already
    again = open_table(uri).facts
    assert again.shape.configuration.keys() == {"delta.constraints.positive", "delta.constraints.small"}


VALUES = ["plain", "a b", "50%", "a%20b", "x/y", "a=b", "ü→💥", "q'\"", "#?&+;:", "[x]", "\\", ".", "{}", None]


def test_partition_values_of_every_kind_are_read_back_as_they_were_staged(pipeline: StagedPipeline) -> None:
    rows = [(number, value) for number, value in enumerate(VALUES)]
    uri = pipeline.tables[HOURLY]
    open_table(uri).commit([line["add"] for line in pipeline.stage(HOURLY, rows)], APP, k(1), {})
    assert pipeline.rows(HOURLY) == sorted(rows, key=str)


def test_partitions_by_date_and_number_are_read_back(tmp_path: Path) -> None:
    uri = (tmp_path / "t").as_uri()
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("part", pa.int32())])
    DeltaTable.create(uri, schema, partition_by=["day", "part"])
    for folder, day, part in [
        ("day=2013-01-31/part=7", "2013-01-31", "7"),
        ("day=__HIVE_DEFAULT_PARTITION__/part=-1", None, "-1"),
    ]:
        path = tmp_path / "t" / folder / "f.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path)
        add = {
            "path": f"{folder}/f.parquet",
            "partitionValues": {"day": day, "part": part},
            "size": path.stat().st_size,
            "modificationTime": 1,
            "stats": '{"numRecords":1}',
        }
        handle = open_table(uri)
        handle.commit([add], APP, CheckpointId((handle.transaction_version(APP) or 0) + 1), {})
    read = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert sorted(((row["day"], row["part"]) for row in read), key=str) == [(None, -1), (date(2013, 1, 31), 7)]


@pytest.mark.parametrize(
    "lost", [{"deletionVector": {}}, {"baseRowId": 0}, {"defaultRowCommitVersion": 0}, {"clusteringProvider": "liquid"}]
)
def test_an_action_with_a_field_that_delta_rs_would_drop_is_refused(pipeline: StagedPipeline, lost: dict[str, Any]) -> None:
    add = pipeline.stage(HOURLY, [(1, "x")])[0]["add"]
    with pytest.raises(UnsupportedTableError, match=next(iter(lost))):
        refuse_lossy(pipeline.tables[HOURLY], add | lost)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text))
@pytest.mark.slow
def test_a_path_is_unquoted_exactly_once(pipeline: StagedPipeline, name: str) -> None:
    add = {"path": quote(name, safe=""), "size": 1, "partitionValues": {"day": None}, "modificationTime": 1, "stats": "{}"}
    handle = open_table(pipeline.tables[HOURLY])
    handle.commit([add], APP, CheckpointId((handle.transaction_version(APP) or 0) + 1), {})
    log = Path(unquote(urlsplit(pipeline.tables[HOURLY]).path)) / "_delta_log"
    newest = max(log.glob("*.json")).read_text().splitlines()
    (path,) = [json.loads(line)["add"]["path"] for line in newest if "add" in json.loads(line)]
    assert unquote(path) == name
