"""Columns that a stage has gained between two runs are added to its table; what was staged before them is published all the same."""

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same

pytestmark = pytest.mark.spark


def _pipeline(site: Site, *columns: str, evolution: str = "add_columns", **sink: object) -> Pipeline:
    pipeline = Pipeline("growing", on_end="suspend")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "events"))

    @pipeline.stage()
    def chosen(events: DataFrame) -> DataFrame:
        return events.selectExpr(*columns)

    table = DeltaSink(str(site.tables / "growing"), schema_evolution=evolution, **sink)  # type: ignore[arg-type]

    @pipeline.stage(sink=table)
    def growing(chosen: DataFrame) -> DataFrame:
        return chosen

    return pipeline


def _arrive(site: Site, seed: int) -> None:
    events = inputs.events(300, seed=seed)
    rows = events.assign(key=events["key"].str[-1])[["id", "key", "value"]]  # ten keys: each is a partition somewhere
    inputs.write_versions(site.home.parent / "events", rows.drop_duplicates(["id", "key"]), 2)


def _table(site: Site) -> DataFrame:
    return site.spark.read.format("delta").load(str(site.tables / "growing"))


def _source(site: Site, versions: int) -> DataFrame:
    return site.spark.read.format("delta").option("versionAsOf", versions - 1).load(str(site.home.parent / "events"))


SINKS = [{}, {"mode": "upsert", "keys": ["id", "key"]}, {"partition_by": ["key"]}]


@pytest.mark.parametrize(
    "sink",
    [SINKS[0], *(pytest.param(sink, marks=pytest.mark.nightly) for sink in SINKS[1:])],
    ids=["append", "upsert", "partitioned"],
)
def test_a_column_that_a_stage_has_gained_is_added_and_earlier_rows_have_null_there(site: Site, sink: dict[str, Any]) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", "key", **sink))
    _arrive(site, 2)
    grown = ("id", "key", "value * 2 AS double", "struct(id, key) AS pair")
    site.run(_pipeline(site, *grown, **sink))
    before, whole = _source(site, 2), _source(site, 4)
    added = whole.exceptAll(before)
    expected = before.selectExpr("id", "key", "CAST(null AS INT)", "CAST(null AS STRUCT<id: BIGINT, key: STRING>)").union(
        added.selectExpr(*grown)
    )
    found = _table(site).select("id", "key", "double", "pair")
    if "mode" in sink:
        expected, found = expected.dropDuplicates(["id", "key"]).select("id", "key"), found.select("id", "key")
    assert_same(answer(found), answer(expected))


@pytest.mark.nightly
def test_a_column_that_a_whole_result_has_gained_is_in_every_row_of_it(site: Site) -> None:
    def totals(*columns: str) -> Pipeline:
        pipeline = Pipeline("growing", on_end="suspend")

        @pipeline.source(bounded=True)
        def events(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(str(site.home.parent / "events"))

        @pipeline.stage(sink=DeltaSink(str(site.tables / "growing"), mode="complete", schema_evolution="add_columns"))
        def growing(events: DataFrame) -> DataFrame:
            return events.groupBy("key").count().selectExpr(*columns)

        return pipeline

    _arrive(site, 1)
    site.run(totals("key", "count"))
    _arrive(site, 2)
    site.run(totals("key", "count", "count * 2 AS twice"))
    counted = _source(site, 4).groupBy("key").count()
    assert_same(answer(_table(site)), answer(counted.selectExpr("key", "count", "count * 2")))


@pytest.mark.nightly
def test_a_column_that_the_source_has_gained_reaches_the_table(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "*"))
    source = f"delta.`{site.home.parent / 'events'}`"
    site.spark.sql(f"ALTER TABLE {source} ADD COLUMNS (extra STRING)")
    site.spark.sql(f"INSERT INTO {source} SELECT id, key, value, concat('extra ', id) FROM {source} LIMIT 100")
    site.run(_pipeline(site, "*"))
    whole = site.spark.read.table(source)
    assert whole.where("extra IS NOT NULL").count() == 100
    assert_same(answer(_table(site)), answer(whole))


def test_rows_staged_before_the_column_are_published_after_it(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", "key"), publish="external")
    _arrive(site, 2)
    site.run(_pipeline(site, "id", "key", "value"), publish="external")
    assert _table(site).count() == 0
    publish(open_files(str(site.home)))
    assert _table(site).where("value IS NULL").count() == _source(site, 2).count()
    assert _table(site).count() == _source(site, 4).count()


@pytest.mark.nightly
def test_the_earlier_code_goes_on_with_the_wider_table(site: Site) -> None:
    for seed, columns in enumerate([("id", "key"), ("id", "key", "value"), ("id", "key")]):
        _arrive(site, seed)
        site.run(_pipeline(site, *columns))
    assert _table(site).count() == _source(site, 6).count()
    assert _table(site).where("value IS NOT NULL").count() == _source(site, 4).count() - _source(site, 2).count()


def test_without_being_asked_for_no_column_is_added(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", evolution="none"))
    _arrive(site, 2)
    with pytest.raises(UnsupportedTableError, match="returns value, which the table does not have"):
        site.run(_pipeline(site, "id", "value", evolution="none"))
    assert _table(site).columns == ["id"]


def test_a_field_that_a_struct_has_gained_is_refused_and_not_dropped_silently(site: Site) -> None:
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [1], "key": ["a"], "value": [1]}))
    site.run(_pipeline(site, "id", "struct(key) AS s"))
    with pytest.raises(UnsupportedTableError, match=r"returns s\.value, which the table does not have"):
        site.run(_pipeline(site, "id", "struct(key, value) AS s"))


def test_a_column_that_the_table_cannot_have_is_refused_by_name(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id"))
    with pytest.raises(UnsupportedTableError, match="a b"):
        site.run(_pipeline(site, "id", "key AS `a b`"))
