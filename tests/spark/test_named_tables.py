"""Tables addressed by their names in Spark's catalog."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline, RejectedError
from spark_jobs.api.sink import TableDesign
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.spark.session import table_location
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import plan_table, prepare_table
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import spark_path, table_files, table_uri
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same

pytestmark = pytest.mark.spark


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA named")
    yield "named"
    spark.sql("DROP SCHEMA named CASCADE")


def _pipeline(site: Site, table: str) -> Pipeline:
    pipeline = Pipeline("named")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(table=table))
    def copy(events: DataFrame) -> DataFrame:
        return events

    return pipeline


@pytest.mark.parametrize("catalog", ["", "spark_catalog."])
def test_rows_go_into_the_table_of_that_name(site: Site, schema: str, catalog: str) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(500)[["id", "key"]], 1)
    site.spark.sql(f"CREATE TABLE {schema}.events (key STRING, id LONG) USING delta COMMENT 'as it was'")
    response = site.run(_pipeline(site, f"{catalog}{schema}.events"))
    whole = site.spark.read.format("delta").load(str(site.home.parent / "events"))
    assert_same(answer(site.spark.read.table(f"{schema}.events")), answer(whole.select("key", "id")))
    assert response.sinks["copy"].table.startswith("file:///")  # type: ignore[index]


# By day, the case in S3 looks up, publishes and reads in the same way. The differences, the storage in HDFS and in Azure, are tested in
# tests/hdfs and in tests/contract.
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("store_site", marks=pytest.mark.stores),
        pytest.param("hdfs_site", marks=[pytest.mark.hdfs, pytest.mark.nightly]),
        pytest.param("azure_site", marks=[pytest.mark.azure, pytest.mark.nightly]),
    ],
)
def test_tables_in_a_store_are_published_into_by_name(place: str, schema: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(place)
    changes = str(site.home.parent / "changes")
    for name in ("copied", "newest"):
        site.spark.sql(f"CREATE TABLE {schema}.{name} (id LONG, seq LONG) USING delta LOCATION '{site.table(name)}'")
    site.spark.sql(f"INSERT INTO {schema}.newest VALUES (0, -1), (99, -1)")
    inputs.append(Path(changes), pd.DataFrame({"id": [n % 20 for n in range(30)], "seq": range(30)}))
    pipeline = Pipeline("named")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(changes)

    @pipeline.stage(sink=DeltaSink(table=f"{schema}.copied"))
    def copied(rows: DataFrame) -> DataFrame:
        return rows

    @pipeline.stage(sink=DeltaSink(table=f"{schema}.newest", mode="upsert", keys=["id"], sequence_by="seq"))
    def newest(rows: DataFrame) -> DataFrame:
        return rows

    response = site.run(pipeline, publish="external")
    publish(open_place(site.place))
    whole = site.spark.read.format("delta").load(changes)
    assert_same(answer(site.spark.table(f"{schema}.copied")), answer(whole))
    newest_rows = whole.groupBy("id").agg(F.max("seq")).union(site.spark.sql("SELECT 99L, -1L"))
    assert_same(answer(site.spark.table(f"{schema}.newest")), answer(newest_rows))
    places = {name: sink.table for name, sink in (response.sinks or {}).items()}
    assert places == {name: table_uri(site.table(name)) for name in ("copied", "newest")}


@pytest.mark.parametrize(
    ("other", "why"), [("spark_catalog.named.events", "sink 'copy'"), ("path", "sink 'copy'"), ("inside", "is inside the table")]
)
def test_two_sinks_with_one_table_are_refused_however_they_name_it(site: Site, schema: str, other: str, why: str) -> None:
    site.spark.sql(f"CREATE TABLE {schema}.events (key STRING, id LONG) USING delta")
    inputs.write_versions(site.home.parent / "events", inputs.events(10)[["id", "key"]], 1)
    path = table_location(site.spark, f"{schema}.events").removeprefix("file:")  # type: ignore[union-attr]
    pipeline = _pipeline(site, f"{schema}.events")
    options: dict[str, Any] = {"path": {"path": path}, "inside": {"path": f"{path}/inside"}}.get(other, {"table": other})

    @pipeline.stage(sink=DeltaSink(**options))
    def again(events: DataFrame) -> DataFrame:
        return events

    with pytest.raises(RejectedError, match=why):
        site.run(pipeline)
    assert not (site.home / "attempts").exists()


def test_a_missing_table_is_refused_if_the_catalog_forgets_its_tables(site: Site, schema: str) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(10)[["id"]], 1)
    with pytest.raises(RejectedError, match="forgets its tables"):
        site.run(_pipeline(site, f"{schema}.missing"))
    assert not (site.home / "attempts").exists()


def test_a_missing_table_of_another_catalog_is_refused(site: Site) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(10)[["id"]], 1)
    with pytest.raises(RejectedError, match=r"elsewhere\.db\.missing"):
        site.run(_pipeline(site, "elsewhere.db.missing"))
    assert not (site.home / "attempts").exists()


def test_a_named_table_that_is_not_a_delta_table_is_refused(site: Site, schema: str) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(10)[["id"]], 1)
    site.spark.sql(f"CREATE TABLE {schema}.plain (id LONG) USING parquet")
    with pytest.raises(UnsupportedTableError, match=r"named\.plain is not a Delta table"):
        site.run(_pipeline(site, f"{schema}.plain"))


def _place(spark: SparkSession, name: str, staged_prefix: str = "1-") -> TablePlace:
    """The place of a table that the catalog did not have when the start was planned."""
    location = f"{spark.conf.get('spark.sql.warehouse.dir')}/named.db/{name}"
    return TablePlace(table_uri(location), f"spark_catalog.named.{name}", staged_prefix, location)


def _facts(spark: SparkSession, name: str) -> dict[str, str]:
    return {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}


def test_a_new_table_belongs_to_its_catalog(spark: SparkSession, schema: str) -> None:
    prepare_table(spark, _place(spark, "events"), spark.createDataFrame([(1,)], "id LONG"), TableDesign(), "copy")
    assert _facts(spark, f"{schema}.events")["Type"] == "MANAGED"


def test_a_table_whose_start_died_before_the_catalog_had_its_name_gets_it(spark: SparkSession, schema: str) -> None:
    place, rows = _place(spark, "events"), spark.createDataFrame([(1,)], "id LONG")
    created = prepare_table(spark, TablePlace(place.uri), rows, TableDesign(), "copy")
    spark.sql(f"ALTER TABLE delta.`{spark_path(place.uri)}` SET TBLPROPERTIES ('closed.by' = 'the next start')")
    assert not spark.catalog.tableExists(f"{schema}.events")
    assert prepare_table(spark, place, rows, TableDesign(), "copy").metadata["id"] == created.metadata["id"]
    assert spark.table(f"{schema}.events").columns == ["id"]


def test_a_table_with_rows_that_the_catalog_does_not_know_by_the_name_is_refused(spark: SparkSession, schema: str) -> None:
    place, rows = _place(spark, "events"), spark.createDataFrame([(1,)], "id LONG")
    rows.write.format("delta").save(spark_path(place.uri))
    with pytest.raises(UnsupportedTableError, match="there is a Delta table with rows where it would be created") as refused:
        plan_table(spark, place, rows, TableDesign(), "copy")
    assert refused.value.remedy is not None
    spark.sql(refused.value.remedy.split("run ")[1].split(". ")[0])
    assert plan_table(spark, place, rows, TableDesign(), "copy").table is not None


def test_a_new_table_gets_its_name_although_a_savepoint_has_brought_rows_into_its_directory(
    spark: SparkSession, schema: str
) -> None:
    place, rows = _place(spark, "events"), spark.createDataFrame([(1,)], "id LONG")
    table_files(place.uri).create("1-part.parquet", b"staged")
    prepare_table(spark, place, rows, TableDesign(comment="made by its name"), "copy")
    facts = _facts(spark, f"{schema}.events")
    assert (facts["Comment"], facts["Location"]) == ("made by its name", f"file:{spark_path(place.uri)}")


def test_the_catalogs_refusal_of_a_name_has_its_reason(spark: SparkSession, schema: str) -> None:
    place, rows = _place(spark, "events"), spark.createDataFrame([(1,)], "id LONG")
    prepare_table(spark, TablePlace(place.uri), rows, TableDesign(), "copy")
    lost = TablePlace(place.uri, "spark_catalog.gone.events", location=place.location)
    with pytest.raises(UnsupportedTableError, match=r"cannot be named spark_catalog\.gone\.events .*SCHEMA_NOT_FOUND"):
        prepare_table(spark, lost, rows, TableDesign(), "copy")
