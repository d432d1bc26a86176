"""Graphs of stages over one bounded input in any order: chains, a diamond, one source with several readers; and the readers' view."""

from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from tests.spark.conftest import SharedInputs, Site
from tests.spark.rows import answer, assert_same, public
from tests.spark.watcher import Watcher

pytestmark = pytest.mark.spark

SINKS = ("hourly", "daily", "weekly", "joined_again", "self_union", "same_frame_twice", "self_joined")


def _pipeline(site: Site, shared: SharedInputs) -> Pipeline:
    pipeline = Pipeline("graphs", checkpoint=CheckpointSettings(interval="1 hour"))

    def sink(name: str) -> DeltaSink:
        return DeltaSink(str(site.tables / name))

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 7).load(str(shared.events))

    @pipeline.stage
    def renamed(events: DataFrame) -> DataFrame:
        return events.select(F.col("ts").alias("happened"), "team", "value")

    @pipeline.stage(sink=sink("hourly"))
    def hourly(renamed: DataFrame) -> DataFrame:
        totals = renamed.groupBy(F.window("happened", "1 hour").alias("hour"), "team").agg(F.sum("value").alias("total"))
        return totals.select(F.window_time("hour").alias("hour_end"), "team", "total")

    @pipeline.stage(sink=sink("daily"))
    def daily(hourly: DataFrame) -> DataFrame:
        totals = (
            hourly.withColumnRenamed("hour_end", "at")
            .groupBy(F.window("at", "1 day").alias("day"))
            .agg(F.sum("total").alias("total"))
        )
        return totals.select(F.col("day.start").alias("day_begin"), F.window_time("day").alias("day_end"), "total")

    @pipeline.stage
    def positive(daily: DataFrame) -> DataFrame:
        return daily.where("total % 2 = 0").select("day_end", "total")

    @pipeline.stage(sink=sink("weekly"))
    def weekly(positive: DataFrame) -> DataFrame:
        return positive.groupBy(F.window("day_end", "7 days").alias("week")).agg(
            F.sum("total").alias("total"), F.count("*").alias("days")
        )

    @pipeline.stage
    def gains(hourly: DataFrame) -> DataFrame:
        return hourly.where("total > 0").select(F.col("hour_end").alias("gained_at"), F.col("team").alias("winner"), "total")

    @pipeline.stage
    def losses(hourly: DataFrame) -> DataFrame:
        return (
            hourly.where("total < 0")
            .groupBy(F.window("hour_end", "1 hour").alias("w"))
            .agg(F.sum("total").alias("lost"))
            .select(F.window_time("w").alias("lost_at"), "lost")
        )

    @pipeline.stage(sink=sink("joined_again"))
    def joined_again(gains: DataFrame, losses: DataFrame) -> DataFrame:
        return gains.join(losses, F.col("gained_at") == F.col("lost_at")).select("gained_at", "winner", "total", "lost")

    @pipeline.stage(sink=sink("self_union"), inputs={"some": "events", "others": "events"})
    def self_union(some: DataFrame, others: DataFrame) -> DataFrame:
        return some.where("value > 500").unionByName(others.where("value < -500")).select("id", "ts", "value")

    @pipeline.stage(sink=sink("same_frame_twice"))
    def same_frame_twice(events: DataFrame) -> DataFrame:
        return events.union(events).groupBy(F.window("ts", "1 day"), "team").agg(F.count("*").alias("n"))

    @pipeline.stage(sink=sink("self_joined"))
    def self_joined(events: DataFrame) -> DataFrame:
        earlier, later = events.alias("earlier"), events.alias("later")
        follows = F.expr("earlier.key = later.key AND later.ts > earlier.ts AND later.ts <= earlier.ts + INTERVAL 5 MINUTES")
        return earlier.join(later, follows).selectExpr("earlier.id AS first", "later.id AS second", "later.ts AS ts")

    return pipeline


ANSWERS = {
    "hourly": "SELECT w.end - INTERVAL 1 MICROSECOND hour_end, team, total FROM "
    "(SELECT window(ts, '1 hour') w, team, sum(value) total FROM events GROUP BY window(ts, '1 hour'), team)",
    "daily": "SELECT window.start day_begin, window.end - INTERVAL 1 MICROSECOND day_end, total FROM "
    "(SELECT window(ts, '1 day') window, sum(value) total FROM events GROUP BY window(ts, '1 day'))",
    "weekly": "SELECT window(day, '7 days') week, sum(total) total, count(*) days FROM "
    "(SELECT date_trunc('day', ts) day, sum(value) total FROM events WHERE ts IS NOT NULL GROUP BY 1) "
    "WHERE total % 2 = 0 GROUP BY window(day, '7 days')",
    "joined_again": "WITH hours AS (SELECT date_trunc('hour', ts) hour, team, sum(value) total FROM events "
    "WHERE ts IS NOT NULL GROUP BY 1, 2) "
    "SELECT gains.hour + INTERVAL 1 HOUR - INTERVAL 1 MICROSECOND gained_at, team winner, total, lost FROM "
    "(SELECT * FROM hours WHERE total > 0) gains JOIN "
    "(SELECT hour, sum(total) lost FROM hours WHERE total < 0 GROUP BY hour) losses ON gains.hour = losses.hour",
    "self_union": "SELECT id, ts, value FROM events WHERE value > 500 OR value < -500",
    "same_frame_twice": "SELECT window, team, 2 * count(*) n FROM events GROUP BY window(ts, '1 day'), team",
    "self_joined": "SELECT a.id first, b.id second, b.ts FROM events a JOIN events b ON a.key = b.key "
    "AND b.ts > a.ts AND b.ts <= a.ts + INTERVAL 5 MINUTES",
}


@dataclass(frozen=True)
class Ran:
    site: Site
    watcher: Watcher


@pytest.fixture(scope="module")
def ran(spark: SparkSession, shared: SharedInputs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A site on which the whole graph has run while a reader watched it."""
    site = Site(spark, tmp_path_factory.mktemp("graphs"))
    watcher = Watcher({name: site.tables / name for name in SINKS}, site.home)
    with watcher:
        site.run(_pipeline(site, shared))
    return Ran(site, watcher)


@pytest.mark.parametrize("sink", SINKS)
def test_a_graph_gives_the_rows_of_a_batch_query(ran: Ran, views: SparkSession, sink: str) -> None:
    assert_same(public(ran.site.tables / sink), answer(views.sql(ANSWERS[sink])))


@pytest.mark.parametrize("sink", SINKS)
def test_a_reader_sees_nothing_before_the_manifest_and_everything_after(ran: Ran, sink: str) -> None:
    total = sum(public(ran.site.tables / sink).values())
    looks = ran.watcher.seen[sink]
    assert {rows for rows, _ in looks} == {0, total}
    assert all(complete for rows, complete in looks if rows)
    assert looks[-1] == (total, True)
    assert sum(1 for rows, complete in looks if not complete) > 10, "it looked too seldom to prove anything"


def test_any_number_of_stages_takes_one_checkpoint_and_one_delta_transaction_a_table(ran: Ran) -> None:
    assert ran.site.checkpoints() == [1]
    assert len(ran.site.manifest().stages) == 11
    for sink in SINKS:
        assert len(public(ran.site.tables / sink, version=0)) == 0
        assert_same(public(ran.site.tables / sink, version=1), public(ran.site.tables / sink))


def test_only_a_stage_with_state_takes_a_drain_batch(ran: Ran) -> None:
    cuts = ran.site.manifest().stages
    assert {name for name, cut in cuts.items() if cut.drain_batches == 0} == {"renamed", "positive", "gains", "self_union"}
    assert {cut.drained for cut in cuts.values()} == {True}
