"""A stage with a watermark delay drops late rows as Spark itself does. Batches and watermark are the same with and without the product.

The bare query cannot be drained. Two rows from the far future come last: the first moves the watermark, and the batch of the second
closes the windows.
"""

from dataclasses import dataclass

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.ids import StageName
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, assert_same, counted, public

pytestmark = pytest.mark.spark

DELAY = "1 hour"


def _days(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("ts", "1 day").alias("day"), "key").agg(F.sum("value").alias("total"))


@dataclass(frozen=True)
class Bare:
    """The result of Spark alone over the same batches."""

    rows: Rows
    late_rows: int


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(spark, tmp_path_factory.mktemp("with-a-delay"))
    for table in inputs.in_order(inputs.ROWS, batches=6, late_fraction=2_000 / inputs.ROWS):
        inputs.append(site.home.parent / "events", table)
    pipeline = Pipeline("delayed")

    @pipeline.source(bounded=True, event_time="ts", watermark_delay=DELAY)
    def events(spark: SparkSession) -> DataFrame:
        return _one_version_a_batch(spark, site)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily(events: DataFrame) -> DataFrame:
        return _days(events)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "distinct")))
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["key", "ts"]).select("key", "ts")

    site.run(pipeline)
    for day in ("2100-01-01", "2100-01-02"):
        end = pd.DataFrame({"id": [-1], "ts": [pd.Timestamp(day, tz="UTC")], "key": ["end"], "value": [0]})
        end["ts"] = end["ts"].astype("datetime64[us, UTC]")
        inputs.append(site.home.parent / "events", end.astype({"value": "int32"}))
    return site


# Windows and distinct rows drop late rows by the same watermark.
@pytest.fixture(scope="module", params=["daily", pytest.param("distinct", marks=pytest.mark.nightly)])
def bare(spark: SparkSession, site: Site, request: pytest.FixtureRequest) -> tuple[str, Bare]:
    name = str(request.param)
    frame = _one_version_a_batch(spark, site).withWatermark("ts", DELAY)
    result = _days(frame) if name == "daily" else frame.dropDuplicates(["key", "ts"]).select("key", "ts")
    rows: Rows = Rows()

    def collect(batch: DataFrame, number: int) -> None:
        rows.update(counted(batch.where("key <> 'end'").toArrow()))

    checkpoint = str(site.home.parent / f"bare-{name}")
    query = result.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    late = sum(o["numRowsDroppedByWatermark"] for p in query.recentProgress for o in p["stateOperators"])
    return name, Bare(rows, late)


def test_late_rows_are_dropped_as_in_spark_itself(site: Site, bare: tuple[str, Bare]) -> None:
    name, expected = bare
    assert_same(public(site.tables / name), expected.rows)


def test_the_number_of_late_rows_is_in_the_manifest(site: Site, bare: tuple[str, Bare]) -> None:
    name, expected = bare
    assert site.manifest().stages[StageName(name)].late_rows == expected.late_rows > 100


def _one_version_a_batch(spark: SparkSession, site: Site) -> DataFrame:
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
    return reader.load(str(site.home.parent / "events"))
