"""Rows that violate the expectations of their stage. Each is counted and in one of two tables, however the pipeline stops."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import StageName
from tests.spark import inputs
from tests.spark.conftest import SharedInputs, Site
from tests.spark.failing import failing_from
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.growing_table import Events, events_of
from tests.support.running import Running

pytestmark = pytest.mark.spark

EXPECT = {"positive": "total > 0", "known": "team IS NOT NULL -- some have none"}
HOURS = """
    SELECT w.start AS hour, team, total, CASE WHEN total > 0 AND team IS NOT NULL THEN NULL ELSE array_compact(array(
        CASE WHEN total > 0 THEN NULL ELSE 'positive' END, CASE WHEN team IS NOT NULL THEN NULL ELSE 'known' END)) END AS violated
    FROM (SELECT window(ts, '1 hour') w, team, sum(value) total FROM sometimes_known GROUP BY window(ts, '1 hour'), team)"""


@pytest.fixture
def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    return events_of(request, tmp_path / "events", monkeypatch)


def hourly_totals(site: Site, shared: SharedInputs, flag: Path, **options: Any) -> Pipeline:
    """Declares totals of windows, some without a team, some not positive. The stage fails while ``flag`` exists."""
    pipeline, fail = Pipeline("hours"), failing_from(inputs.ROWS // 2, flag)

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 2).load(str(shared.events))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "hourly")), **{"expect": EXPECT} | options)
    def hourly(events: DataFrame) -> DataFrame:
        known = (
            events.withColumn("id", fail("id")).withColumn("team", F.expr("CASE WHEN id % 7 > 0 THEN team END")).where("id >= 0")
        )
        totals = known.groupBy(F.window("ts", "1 hour").alias("w"), "team").agg(F.sum("value").alias("total"))
        return totals.select(F.col("w.start").alias("hour"), "team", "total")

    return pipeline


def test_each_row_is_in_exactly_one_of_two_tables_after_a_failure_of_a_stage_with_state(
    site: Site, shared: SharedInputs, views: SparkSession, tmp_path: Path
) -> None:
    flag = tmp_path / "fails"
    flag.touch()
    pipeline = hourly_totals(site, shared, flag, violations=DeltaSink(str(site.tables / "rejected")))
    with pytest.raises(InterruptedRunError):
        site.run(pipeline)
    assert public_count(site.tables / "hourly") in (None, 0)
    flag.unlink()
    site.run(pipeline)
    events = views.table("events").withColumn("team", F.expr("CASE WHEN id % 7 > 0 THEN team END")).where("ts IS NOT NULL")
    events.createOrReplaceTempView("sometimes_known")
    hours = views.sql(HOURS)
    bad = hours.where("violated IS NOT NULL")
    assert_same(public(site.tables / "hourly"), answer(hours.where("violated IS NULL").drop("violated")))
    columns = ["hour", "team", "total", "violated_expectations"]
    assert_same(public(site.tables / "rejected", columns), answer(bad))
    batches = public(site.tables / "rejected", ["violated_in_batch", "violated_at"])
    assert all(batch >= 0 and at <= datetime.now(UTC) for batch, at in batches)
    counted = {
        row["name"]: row["count"] for row in bad.select(F.explode("violated").alias("name")).groupBy("name").count().collect()
    }
    assert site.manifest().stages[StageName("hourly")].violations == counted
    assert counted.keys() == EXPECT.keys()


def test_a_row_that_violates_an_expectation_fails_its_batch_before_anything_is_staged(
    site: Site, shared: SharedInputs, tmp_path: Path
) -> None:
    pipeline = hourly_totals(site, shared, tmp_path / "never")
    with pytest.raises(RejectedError, match="has a row that violates expectations of the stage") as caught:
        site.run(pipeline)
    assert set(caught.value.evidence["expectations"]) <= EXPECT.keys()
    assert public_count(site.tables / "hourly") == 0


def test_all_wrong_conditions_are_refused_in_one_error_before_anything_is_written(
    site: Site, shared: SharedInputs, tmp_path: Path
) -> None:
    conditions = {
        "known": "unknown > 0",
        "parsed": "total >",
        "condition": "total",
        "single": "sum(total) > 0",
        "lasting": "rand() > 0.5",
        "alone": "total > (SELECT 1)",
        "right": "total > 0",
    }
    violations = DeltaSink(str(site.tables / "rejected"))
    with pytest.raises(InvalidPipelineError, match="6 mistakes were found") as caught:
        site.run(hourly_totals(site, shared, tmp_path / "never", expect=conditions, violations=violations))
    assert [mistake["expectation"] for mistake in caught.value.evidence["mistakes"]] == list(conditions)[:-1]
    assert not site.tables.exists()


# test_each_row_is_in_exactly_one_of_two_tables_after_a_failure_of_a_stage_with_state sorts rows over a failure by day.
@pytest.mark.nightly
def test_a_running_pipeline_sorts_each_row_once_over_two_attempts(site: Site, live: Events) -> None:
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    live.source(pipeline)

    def sink(name: str) -> DeltaSink:
        return DeltaSink(str(site.tables / name), publish="every_checkpoint")

    @pipeline.stage(sink=sink("copied"), expect={"odd": "id % 2 = 1"}, violations=sink("even"))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=sink("again"))
    def again(copied: DataFrame) -> DataFrame:
        return copied.select("id")

    def ids(table: str) -> list[int]:
        path = site.tables / table
        return sorted(number for (number,) in public(path, ["id"]).elements()) if public_count(path) is not None else []

    def is_shown() -> bool:
        return len(ids("again")) + len(ids("even")) == live.rows

    for rows in (100, 200):
        live.add(rows)
        with Running(site.spark, pipeline, site.home) as running:
            running.until(is_shown)
            assert running.status is not None
            assert running.status.stages[StageName("copied")].violations["odd"] > 0
    odd, even = list(range(1, live.rows, 2)), list(range(0, live.rows, 2))
    assert (ids("copied"), ids("again"), ids("even")) == (odd, odd, even)
    assert site.manifest().stages[StageName("copied")].violations == {"odd": len(even)}
