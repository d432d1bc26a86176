"""A new table has the same metadata as a table that Delta's own builder makes with these columns and this layout."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_jobs.api.sink import TableDesign
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.runtime.tables.new_tables import create_table
from spark_jobs.runtime.tables.schemas import nullable
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import read_table
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import table_uri
from tests.spark.conftest import Site
from tests.support import delta_logs
from tests.support.opened_tables import with_log
from tests.support.places import in_a_store_at_night

pytestmark = pytest.mark.spark

PLAIN = "id LONG, region STRING, day DATE"
EVERY_PLAIN_TYPE = (
    "a BOOLEAN, b BYTE, c SHORT, d INT, e LONG, f FLOAT, g DOUBLE, h DECIMAL(38, 18), i STRING, j BINARY, k DATE, l TIMESTAMP, "
    "m ARRAY<STRUCT<x: INT NOT NULL, y: MAP<STRING, ARRAY<DATE>>>>, `grün` STRING, `it's` STRUCT<`ä-b`: LONG>"
)
BY_US, BY_DELTA, REFUSED = "by us", "by Delta", "refused"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


def _design(**options: Any) -> TableDesign:
    return TableDesign(**options)


CASES = {
    "every plain type": (EVERY_PLAIN_TYPE, _design(), BY_US),
    "not null": ("id LONG NOT NULL, s STRUCT<x: INT NOT NULL> NOT NULL", _design(), BY_US),
    "partitioned": (PLAIN, _design(partition_by=("region", "day")), BY_US),
    "described": (PLAIN, _design(comment='who\'s "there"?\n`ü`'), BY_US),
    "partitioned under a name in other letters": (PLAIN, _design(partition_by=("REGION",)), BY_DELTA),
    "clustered": (PLAIN, _design(cluster_by=("region",)), BY_DELTA),
    "with a property of Delta's": (PLAIN, _design(properties={"delta.enableChangeDataFeed": "true"}), BY_DELTA),
    "with a property of one's own": (PLAIN, _design(properties={"team": "us"}), BY_DELTA),
    "with a name that only column mapping can hold": (
        "`a b` STRING, c LONG",
        _design(properties={"delta.columnMapping.mode": "name"}),
        BY_DELTA,
    ),
    "with times of no zone": ("id LONG, noon ARRAY<TIMESTAMP_NTZ>", _design(), BY_DELTA),
    "with a variant": ("id LONG, payload VARIANT", _design(), BY_DELTA),
    "with a collation": ("id LONG, name STRING COLLATE UTF8_LCASE", _design(), REFUSED),
    "with a name that Parquet cannot have": ("`a b` STRING, c LONG", _design(), REFUSED),
    "with one column twice": ("a STRING, A LONG", _design(), REFUSED),
    "with one field twice": ("s STRUCT<a: STRING, A: LONG>", _design(), REFUSED),
    "partitioned by all columns": ("region STRING, day DATE", _design(partition_by=("region", "day")), None),
    "partitioned by one column twice": (PLAIN, _design(partition_by=("day", "day")), REFUSED),
    "partitioned by an array": ("a ARRAY<INT>, b INT", _design(partition_by=("a",)), REFUSED),
    "with nothing but a column without a type": ("id LONG, nothing VOID", _design(), None),
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


@in_a_store_at_night
@pytest.mark.parametrize("case", CASES)
def test_a_new_table_has_the_metadata_that_delta_would_give_it(session: SparkSession, site: Site, case: str) -> None:
    columns, design, maker = CASES[case]
    schema = _schema(columns)
    found = _made_by_us(session, site.table("ours"), schema, design)
    assert found == _made_by_delta(session, site.table("delta's"), schema, design)
    if maker is not None:
        assert (REFUSED if found is None else _maker(site.table("ours"))) == maker


def test_table_properties_that_the_session_sets_for_new_tables_apply(spark: SparkSession, site: Site) -> None:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.properties.defaults.enableDeletionVectors", "true")
    schema = _schema(PLAIN)
    found = _made_by_us(session, site.table("ours"), schema, _design())
    assert found == _made_by_delta(session, site.table("delta's"), schema, _design())
    assert found is not None
    assert found["metaData"]["configuration"] == {"delta.enableDeletionVectors": "true"}


@in_a_store_at_night
@pytest.mark.parametrize("properties", [{}, {"team": "us"}], ids=["without Spark", "by Delta"])
def test_spark_runs_no_job_to_read_a_new_table(session: SparkSession, site: Site, properties: dict[str, str]) -> None:
    for name in ("whole", "without its checksum"):
        create_table(session, _place(site.table(name)), _schema(PLAIN), _design(properties=properties), "sink")
    open_place(site.table("without its checksum")).delete("_delta_log/00000000000000000000.crc")
    assert _jobs_of_reading(session, site.table("whole")) == 0
    assert _jobs_of_reading(session, site.table("without its checksum")) > 0


@in_a_store_at_night
def test_no_table_is_made_where_other_files_are(session: SparkSession, site: Site) -> None:
    taken = open_place(site.table("taken"))
    taken.create("below/notes.txt", b"mine")
    with pytest.raises(UnsupportedTableError, match=r"there are other files, such as below/notes.txt"):
        create_table(session, _place(site.table("taken")), _schema(PLAIN), _design(), "sink")
    assert taken.paths() == ["below/notes.txt"]


def test_a_probe_that_a_killed_start_has_left_does_not_keep_a_table_from_its_place(session: SparkSession, site: Site) -> None:
    open_place(site.table("made")).create(f"probe-{'0' * 32}", b"first")
    create_table(session, _place(site.table("made")), _schema(PLAIN), _design(), "sink")


@in_a_store_at_night
def test_only_one_of_two_starts_makes_the_table(session: SparkSession, site: Site) -> None:
    place, schema = _place(site.table("made")), _schema(PLAIN)
    create_table(session, place, schema, _design(comment="first"), "sink")
    create_table(session, place, schema, _design(comment="second"), "sink")
    with with_log(site.table("made")) as log:
        assert len(delta_logs.commits(log)) == 1
        assert delta_logs.newest(log, "metaData")["description"] == "first"


def _place(table: str) -> TablePlace:
    return TablePlace(table_uri(table))


def _jobs_of_reading(session: SparkSession, table: str) -> int:
    context = session.sparkContext
    context.setJobGroup(table, "reads a new table")
    try:
        assert read_table(session, table_uri(table)).schema == nullable(_schema(PLAIN))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return len(context.statusTracker().getJobIdsForGroup(table))


def _schema(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def _made_by_us(session: SparkSession, table: str, schema: StructType, design: TableDesign) -> Mapping[str, Any] | None:
    try:
        create_table(session, _place(table), schema, design, "sink")
    except UnsupportedTableError:
        return None
    return _facts(table)


def _made_by_delta(session: SparkSession, table: str, schema: StructType, design: TableDesign) -> Mapping[str, Any] | None:
    builder = DeltaTable.create(session).location(table).addColumns(nullable(schema))
    if design.partition_by:
        builder = builder.partitionedBy(*design.partition_by)
    if design.cluster_by:
        builder = builder.clusterBy(*design.cluster_by)
    if design.comment:
        builder = builder.comment(design.comment)
    for key, value in design.properties.items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except AnalysisException:
        return None
    return _facts(table)


def _facts(table: str) -> dict[str, Any]:
    """Returns the actions of the first commit, without the values that differ for each table."""
    with with_log(table) as log:
        (commit,) = delta_logs.commits(log)
    actions = {name: action for line in commit for name, action in line.items() if name != "commitInfo"}
    metadata = {
        key: value for key, value in actions["metaData"].items() if key not in ("id", "createdTime") and value is not None
    }
    schema = json.loads(metadata["schemaString"], object_hook=_without_drawn_names)
    return actions | {"metaData": metadata | {"schemaString": schema}}


def _without_drawn_names(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != _PHYSICAL_NAME}


def _maker(table: str) -> str:
    with with_log(table) as log:
        engine = delta_logs.newest(log, "commitInfo")["engineInfo"]
    return BY_US if engine.startswith("airflow-provider-spark-jobs/") else BY_DELTA
