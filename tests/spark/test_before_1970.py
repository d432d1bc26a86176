"""Spark begins at 1970 and drops earlier rows as late. From an unordered input no row is dropped."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events with the newest ones first, the oldest from 1899, and those of 1969 twice. In one version no row has a time."""
    path = tmp_path_factory.mktemp("before-1970") / "events"
    for number, year in enumerate([2024, 1969, None, 1975, 1899, 1969]):
        table = inputs.events(inputs.ROWS // 5, seed=number)[["id", "ts", "key", "value"]]
        table["ts"] -= inputs.BEGIN - pd.Timestamp(f"{year or 2024}-11-20", tz="UTC").as_unit("us")
        if year is None:
            table["ts"] = table["ts"].where(table["ts"].isna())
        table["id"] += number * 100_000
        inputs.append(path, table)
    return path


@pytest.fixture(scope="module")
def site(spark: SparkSession, path: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(spark, tmp_path_factory.mktemp("before-1970"))
    pipeline = Pipeline("old")

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
        return reader.load(str(path))

    @pipeline.source(bounded=True, event_time="ts")
    def dated(spark: SparkSession) -> DataFrame:
        """Drops rows without a time. One batch has no rows left, and comes first after a batch was planned again."""
        return events(spark).where("ts IS NOT NULL")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily(dated: DataFrame) -> DataFrame:
        return (
            dated.groupBy(F.window("ts", "1 day").alias("day"), "key")
            .agg(F.sum("value").alias("total"))
            .select("key", "total", F.window_time("day").alias("day_end"))
        )

    @pipeline.stage(sink=DeltaSink(str(site.tables / "yearly")))
    def yearly(daily: DataFrame) -> DataFrame:
        weeks = daily.groupBy(F.window("day_end", "7 days").alias("week")).agg(F.sum("total").alias("total"))
        return weeks.select("week.start", "total")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "distinct")))
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["id", "ts"]).select("id", "ts")

    site.run(pipeline)
    return site


@pytest.mark.parametrize(
    ("sink", "query"),
    {
        "daily": "SELECT key, sum(value) total, window.end - INTERVAL 1 MICROSECOND day_end FROM old "
        "GROUP BY window(ts, '1 day'), key",
        "yearly": "SELECT window.start, sum(value) total FROM old GROUP BY window(ts, '7 days')",
        "distinct": "SELECT DISTINCT id, ts FROM old",
    }.items(),
)
def test_no_row_before_1970_is_late(views: SparkSession, site: Site, path: Path, sink: str, query: str) -> None:
    views.read.format("delta").load(str(path)).createOrReplaceTempView("old")
    assert_same(public(site.tables / sink), answer(views.sql(query)))


def test_spark_counts_no_row_as_late(site: Site) -> None:
    assert [cut.late_rows for cut in site.manifest().stages.values()] == [0, 0, 0]


@pytest.fixture
def site_of_one(spark: SparkSession, tmp_path: Path) -> Site:
    """A site for a single test."""
    return Site(spark, tmp_path)


def test_a_row_at_the_very_beginning_of_1970_is_not_late(site_of_one: Site) -> None:
    site, pipeline = site_of_one, Pipeline("beginning")
    table = inputs.events(100)[["id", "ts"]].drop_duplicates("id")
    table["ts"] = pd.Timestamp(0, tz="UTC").as_unit("us")
    inputs.append(site.home.parent / "events", table)

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "distinct")))
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["id", "ts"])

    site.run(pipeline)
    assert public(site.tables / "distinct").total() == 100


SINCE_EVER_MICROS = -62_135_596_800_000_000
"""0001-01-01 in UTC, which is the day before in some time zones."""


def test_a_row_with_the_earliest_event_time_is_not_late_and_an_older_row_is_refused(site_of_one: Site) -> None:
    site, pipeline, path = site_of_one, Pipeline("since_ever"), str(site_of_one.home.parent / "events")

    def add(*micros: int) -> None:
        rows = site.spark.createDataFrame([(each,) for each in micros], "micros long")
        rows.select("micros", F.timestamp_micros("micros").alias("ts")).write.format("delta").mode("append").save(path)

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(path)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "hourly")))
    def hourly(events: DataFrame) -> DataFrame:
        return (
            events.groupBy(F.window("ts", "1 hour").alias("hour"))
            .count()
            .select(F.unix_micros("hour.start").alias("start"), "count")
        )

    @pipeline.stage(sink=DeltaSink(str(site.tables / "distinct")))
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["micros", "ts"]).select("micros")

    micros = (SINCE_EVER_MICROS, SINCE_EVER_MICROS - 18 * 3_600_000_000, SINCE_EVER_MICROS + 5, 0, 10**15)
    add(*micros)
    site.run(pipeline)
    assert sorted(row[0] for row in public(site.tables / "distinct")) == sorted(micros)
    assert sum(row[1] for row in public(site.tables / "hourly").elements()) == len(micros)
    add(SINCE_EVER_MICROS * 2)
    with pytest.raises(RejectedError, match="an event time before the year 1"):
        site.run(pipeline, fresh=True, on_rewind="replace")


def _pipeline(site: Site, name: str, change: Callable[[DataFrame], DataFrame]) -> Pipeline:
    """Declares a pipeline over two versions of rows of 1914, one version per batch."""
    pipeline, path = Pipeline(name), site.home.parent / "events"
    table = inputs.events(1_000)[["id", "ts"]]
    table["ts"] -= pd.Timedelta(days=40_000)
    inputs.write_versions(path, table, 2)

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(path))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily(events: DataFrame) -> DataFrame:
        return change(events)

    return pipeline


def test_one_stage_can_remove_duplicates_and_count_rows_by_window(site_of_one: Site) -> None:
    def change(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["id", "ts"]).groupBy(F.window("ts", "1 day")).count()

    site_of_one.run(_pipeline(site_of_one, "deduplicated", change))
    events = site_of_one.spark.read.format("delta").load(str(site_of_one.home.parent / "events"))
    assert_same(public(site_of_one.tables / "daily"), answer(change(events)))


def test_a_stage_with_two_aggregations_is_refused_because_spark_would_drop_rows_between_them(site_of_one: Site) -> None:
    def change(events: DataFrame) -> DataFrame:
        hours = events.groupBy(F.window("ts", "1 hour").alias("hour")).count()
        return hours.groupBy(F.window(F.window_time("hour"), "1 day")).agg(F.sum("count").alias("n"))

    with pytest.raises(InvalidPipelineError, match="stateful operators one after the other"):
        site_of_one.run(_pipeline(site_of_one, "chained", change))
    assert public_count(site_of_one.tables / "daily") == 0
