"""Existing tables, whose columns and layout must fit their sinks; new tables; and odd partition values and paths."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline, RejectedError
from spark_jobs.protocol.errors import UnsupportedTableError
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support import delta_logs

pytestmark = pytest.mark.spark

REGIONS = ["a b", "100%", "%41", "ü/ñ=&?#", "x'y\"z", "back\\slash", " ", "日本", None]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd-values") / "events"
    table = inputs.events(5_000)
    table["region"] = [REGIONS[number % len(REGIONS)] for number in range(len(table))]
    table["day"] = table["ts"].dt.date
    inputs.append(path, table)
    return path


def _pipeline(events: Path, columns: list[str], sink: DeltaSink) -> Pipeline:
    pipeline = Pipeline("tables")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(events))

    @pipeline.stage(sink=sink)
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(*columns)

    return pipeline


def test_rows_take_the_column_order_and_the_types_of_an_existing_table(site: Site, events: Path) -> None:
    path = site.tables / "existing"
    site.spark.sql(
        f"CREATE TABLE delta.`{path}` (value BIGINT, KEY STRING, extra DOUBLE, ts TIMESTAMP, id DECIMAL(20, 0), "
        "hour INT GENERATED ALWAYS AS (hour(ts))) USING delta PARTITIONED BY (hour)"
    )
    site.run(_pipeline(events, ["id", "ts", "key", "value"], DeltaSink(str(path))))
    expected = site.spark.read.format("delta").load(str(events))
    found = site.spark.read.format("delta").load(str(path))
    assert found.schema["value"].dataType.simpleString() == "bigint"
    query = ("bigint(value) value", "key", "double(NULL) extra", "ts", "CAST(id AS DECIMAL(20, 0)) id", "hour(ts) hour")
    assert_same(answer(found), answer(expected.selectExpr(*query)))
    assert_same(public(path, ["value", "KEY", "extra", "ts", "id", "hour"]), answer(expected.selectExpr(*query)))


@pytest.mark.parametrize("partition_by", [pytest.param(["region"], marks=pytest.mark.nightly), ["day", "region"]])
def test_every_value_can_be_a_partition(site: Site, events: Path, partition_by: list[str]) -> None:
    path = site.tables / "by region (100)"
    site.run(_pipeline(events, ["region", "day", "id", "ts"], DeltaSink(str(path), partition_by=partition_by)))
    expected = site.spark.read.format("delta").load(str(events)).select("region", "day", "id", "ts")
    assert_same(public(path, ["region", "day", "id", "ts"]), answer(expected))
    assert_same(answer(site.spark.read.format("delta").load(str(path)).select("region", "day", "id", "ts")), answer(expected))
    assert DeltaTable(str(path)).metadata().partition_columns == partition_by


def test_tables_can_have_odd_names(site: Site, events: Path) -> None:
    names = ["with a space", "grün", "a=b", "it's", "a+b", "a&b", "a,b;c", "~x", "(1)"]
    pipeline = Pipeline("names")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(events))

    for number, name in enumerate(names):
        pipeline.stage(sink=DeltaSink(str(site.tables / name)), name=f"copy{number}")(lambda rows: rows.select("id", "region"))
    site.run(pipeline)
    expected = answer(site.spark.read.format("delta").load(str(events)).select("id", "region"))
    for name in names:
        assert_same(public(site.tables / name), expected)


@pytest.mark.parametrize("name", ["#1", "why?", "50%20", "a|b", "[x]", "a\\b", "a:b", "a*"])
def test_a_table_whose_name_spark_and_delta_rs_read_differently_is_refused(site: Site, events: Path, name: str) -> None:
    with pytest.raises(RejectedError):
        site.run(_pipeline(events, ["id"], DeltaSink(str(site.tables / name))))
    assert not site.tables.exists()


FEED = "delta.enableChangeDataFeed"


def _existing(site: Site, clauses: str) -> Path:
    path = site.tables / "existing"
    site.spark.sql(f"CREATE TABLE delta.`{path}` (id LONG, region STRING, day DATE) USING delta {clauses}")
    return path


@pytest.mark.parametrize(
    ("sink", "clauses", "found"),
    [
        ({"partition_by": ["region"]}, "", r"is partitioned by \[\]"),
        ({"partition_by": ["region"]}, "PARTITIONED BY (day)", r"is partitioned by \['day'\]"),
        ({"cluster_by": ["region"]}, "", r"is clustered by \[\]"),
        ({"cluster_by": ["region"]}, "CLUSTER BY (id)", r"is clustered by \['id'\]"),
        ({"cluster_by": ["region", "id"]}, "CLUSTER BY (id, region)", r"is clustered by \['id', 'region'\]"),
        ({"table_properties": {FEED: "true"}}, "", f"has {FEED}=None"),
        ({"table_properties": {FEED: "true"}}, f"TBLPROPERTIES ('{FEED}' = 'false')", f"has {FEED}='false'"),
        ({"table_properties": {"team": "us"}}, "TBLPROPERTIES ('team' = 'them')", "has team='them'"),
        ({"table_properties": {"delta.feature.deletionVectors": "supported"}}, "", r"deletionVectors=None"),
    ],
    ids=[
        "not partitioned",
        "other partition columns",
        "not clustered",
        "other clustering columns",
        "clustered in another order",
        "missing property",
        "another value of a property",
        "another value of an own property",
        "missing feature",
    ],
)
def test_a_table_that_differs_from_its_declaration_is_refused_before_anything_is_written(
    site: Site, events: Path, sink: dict[str, Any], clauses: str, found: str
) -> None:
    path = _existing(site, clauses)
    with pytest.raises(UnsupportedTableError, match=found):
        site.run(_pipeline(events, ["id", "region", "day"], DeltaSink(str(path), **sink)))
    assert len(delta_logs.commits(path)) == 1
    assert not list(path.rglob("*.parquet"))
    assert site.checkpoints() == []


@pytest.mark.parametrize(
    ("sink", "clauses"),
    [
        ({"partition_by": ["REGION", "day"]}, "PARTITIONED BY (region, day)"),
        ({"cluster_by": ["REGION", "id"]}, "CLUSTER BY (region, id)"),
        ({"table_properties": {FEED.upper(): "TRUE", "team": "us"}}, f"TBLPROPERTIES ('{FEED}' = 'true', 'team' = 'us')"),
        (
            {"table_properties": {"delta.feature.deletionVectors": "supported"}},
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        ),
        ({"comment": "as it is declared"}, "COMMENT 'as it was'"),
    ],
    ids=["partitioned", "clustered", "properties", "feature", "another comment"],
)
def test_a_table_that_matches_its_declaration_is_accepted(site: Site, events: Path, sink: dict[str, Any], clauses: str) -> None:
    path = _existing(site, clauses)
    site.run(_pipeline(events, ["id", "region", "day"], DeltaSink(str(path), **sink)))
    rows = answer(site.spark.read.format("delta").load(str(events)).select("id", "region", "day"))
    assert_same(answer(site.spark.read.format("delta").load(str(path))), rows)
    detail = site.spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert detail is not None
    assert detail["description"] == ("as it was" if "comment" in sink else None)


@pytest.mark.parametrize("layout", ["partition_by", "cluster_by"])
def test_a_new_table_matches_its_declaration(site: Site, events: Path, layout: str) -> None:
    path = site.tables / "made"
    sink = DeltaSink(str(path), comment="who's 'there'?", table_properties={FEED: "true"}, **{layout: ["region", "day"]})  # type: ignore[arg-type]
    for _ in range(2):
        site.run(_pipeline(events, ["id", "region", "day"], sink))
    detail = site.spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert detail is not None
    assert detail["description"] == "who's 'there'?"
    assert detail["properties"][FEED] == "true"
    columns = {"partition_by": "partitionColumns", "cluster_by": "clusteringColumns"}
    assert {name: detail[column] for name, column in columns.items()} == {"partition_by": [], "cluster_by": []} | {
        layout: ["region", "day"]
    }
