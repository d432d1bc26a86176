"""Each operator of Structured Streaming over a bounded input in any order, compared with a batch query over the same files."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import SharedInputs, Site
from tests.spark.rows import answer, assert_same, public

pytestmark = pytest.mark.spark


EVERY_CHANGE = frozenset({"named", "united", "left_joined", "distinct_within", "sessions", "timers"})
AT_NIGHT = frozenset({"inner_joined", "distinct", "tumbling", "sliding", "with_state"})
"""The operators tested at night. Another operator with the same kind of state is tested on every change."""
Stage = Callable[..., DataFrame]


def _pipeline(site: Site, shared: SharedInputs, wanted: frozenset[str]) -> Pipeline:
    pipeline = Pipeline("operators", checkpoint=CheckpointSettings(interval="1 hour"))

    def stage(function: Stage) -> Stage:
        name = function.__name__
        if name in wanted:
            pipeline.stage(sink=DeltaSink(str(site.tables / name)))(function)
        return function

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 5).load(str(shared.events))

    @pipeline.source(bounded=True, event_time="paid_at")
    def payments(spark: SparkSession) -> DataFrame:
        schema = "payment long, paid_at timestamp, payer string, amount int"
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(shared.payments))

    def places(spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(shared.places))

    if "named" in wanted:
        pipeline.static(places)

    @stage
    def united(events: DataFrame, payments: DataFrame) -> DataFrame:
        return events.select("key", "ts", "value").union(payments.select("payer", "paid_at", "amount"))

    within = (
        (F.col("payer") == F.col("key"))
        & (F.col("paid_at") >= F.col("ts"))
        & (F.col("paid_at") <= F.col("ts") + F.expr("INTERVAL 10 MINUTES"))
    )

    @stage
    def inner_joined(events: DataFrame, payments: DataFrame) -> DataFrame:
        return events.join(payments, within).select("id", "ts", "payment", "paid_at")

    @stage
    def left_joined(events: DataFrame, payments: DataFrame) -> DataFrame:
        return events.where("ts IS NOT NULL").join(payments, within, "left_outer").select("id", "ts", "payment", "paid_at")

    @stage
    def named(events: DataFrame, places: DataFrame) -> DataFrame:
        return events.join(places, "key", "left").select("id", "ts", "place")

    @stage
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["id", "ts"]).select("id", "ts", "value")

    @stage
    def distinct_within(events: DataFrame) -> DataFrame:
        return events.dropDuplicatesWithinWatermark(["id"]).select("id", "key", "value")

    @stage
    def tumbling(events: DataFrame) -> DataFrame:
        return events.groupBy(F.window("ts", "1 hour"), "team").agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    @stage
    def sliding(events: DataFrame) -> DataFrame:
        return events.groupBy(F.window("ts", "6 hours", "2 hours"), "region").agg(F.count("*").alias("n"))

    @stage
    def sessions(events: DataFrame) -> DataFrame:
        return events.groupBy(F.session_window("ts", "30 minutes"), "team").agg(
            F.count("*").alias("n"), F.max("value").alias("m")
        )

    @stage
    def with_state(events: DataFrame) -> DataFrame:
        def totals(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
            if state.hasTimedOut:
                yield pd.DataFrame([(key[0], *state.get)], columns=["team", "n", "total"])
                state.remove()
                return
            n, total = state.get if state.exists else (0, 0)
            newest = 0
            for part in parts:
                n, total = n + len(part), total + int(part["value"].sum())
                times = part["ts"].dropna()
                newest = max(newest, int(times.max().timestamp() * 1000) if len(times) else 0)
            state.update((n, total))
            state.setTimeoutTimestamp(newest + 3_600_000)

        return events.groupBy("team").applyInPandasWithState(
            totals, "team string, n long, total long", "n long, total long", "append", "EventTimeTimeout"
        )

    @stage
    def timers(events: DataFrame) -> DataFrame:
        class Reminders(StatefulProcessor):
            """Counts rows. The timer of the newest event sets another one, an hour later, four times in all."""

            def init(self, handle: Any) -> None:
                self._handle = handle
                self._state = handle.getValueState("state", "n long, due long")

            def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
                n, due = self._state.get() if self._state.exists() else (0, 0)
                newest = due
                for part in rows:
                    n += len(part)
                    times = part["ts"].dropna()
                    newest = max(newest, int(times.max().timestamp() * 1000) if len(times) else 0)
                if due != newest:
                    if due:
                        self._handle.deleteTimer(due)
                    self._handle.registerTimer(newest)
                self._state.update((n, newest))
                yield pd.DataFrame()

            def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
                n, due = self._state.get()
                at = expiredTimerInfo.getExpiryTimeInMs()
                level = (at - due) // 3_600_000 + 1
                if level < 4:
                    self._handle.registerTimer(at + 3_600_000)
                yield pd.DataFrame({"team": [key[0]], "level": [level], "at": [at], "n": [n]})

            def close(self) -> None:
                pass

        return events.groupBy("team").transformWithStateInPandas(
            Reminders(), "team string, level long, at long, n long", "append", "EventTime"
        )

    return pipeline


SiteOf = Callable[[str], Site]


@pytest.fixture(scope="module")
def site_of(spark: SparkSession, shared: SharedInputs, tmp_path_factory: pytest.TempPathFactory) -> SiteOf:
    """Returns a function that gives the site on which a stage has run, with all stages that are tested as often."""

    @cache
    def run(wanted: frozenset[str]) -> Site:
        site = Site(spark, tmp_path_factory.mktemp("operators"))
        site.run(_pipeline(site, shared, wanted))
        return site

    return lambda sink: run(AT_NIGHT if sink in AT_NIGHT else EVERY_CHANGE)


@pytest.fixture(scope="module")
def site(site_of: SiteOf) -> Site:
    return site_of("timers")


def every_change_or_at_night(queries: Mapping[str, str]) -> list[Any]:
    return [pytest.param(*each, marks=pytest.mark.nightly if each[0] in AT_NIGHT else ()) for each in queries.items()]


WITHIN = "payer = key AND paid_at >= ts AND paid_at <= ts + INTERVAL 10 MINUTES"


@pytest.mark.parametrize(
    ("sink", "query"),
    every_change_or_at_night(
        {
            "united": "SELECT key, ts, value FROM events UNION ALL SELECT payer, paid_at, amount FROM payments",
            "inner_joined": f"SELECT id, ts, payment, paid_at FROM events JOIN payments ON {WITHIN}",
            "left_joined": f"SELECT id, ts, payment, paid_at FROM events LEFT JOIN payments ON {WITHIN} WHERE ts IS NOT NULL",
            "named": "SELECT id, ts, place FROM events LEFT JOIN places USING (key)",
            "distinct": "SELECT DISTINCT id, ts, value FROM events",
            "distinct_within": "SELECT DISTINCT id, key, value FROM events",
            "tumbling": "SELECT window, team, count(*) n, sum(value) total FROM events GROUP BY window(ts, '1 hour'), team",
            "sliding": "SELECT window, region, count(*) n FROM events GROUP BY window(ts, '6 hours', '2 hours'), region",
            "sessions": "SELECT session_window, team, count(*) n, max(value) m FROM events "
            "GROUP BY session_window(ts, '30 minutes'), team",
            "with_state": "SELECT team, count(*) n, sum(value) total FROM events GROUP BY team",
            "timers": "SELECT team, level, unix_millis(newest) + (level - 1) * 3600000 at, n FROM "
            "(SELECT team, max(ts) newest, count(*) n FROM events GROUP BY team) LATERAL VIEW explode(sequence(1, 4)) AS level",
        }
    ),
)
def test_an_operator_gives_the_rows_of_a_batch_query(site_of: SiteOf, views: SparkSession, sink: str, query: str) -> None:
    assert_same(public(site_of(sink).tables / sink), answer(views.sql(query)))


def test_one_checkpoint_holds_all_operators_and_no_row_was_late(site: Site) -> None:
    manifest = site.manifest()
    assert site.checkpoints() == [manifest.checkpoint]
    assert {name: cut.late_rows for name, cut in manifest.stages.items()} == dict.fromkeys(manifest.stages, 0)
    assert all(cut.drained for cut in manifest.stages.values())


def test_timers_that_set_timers_take_a_drain_batch_each(site: Site) -> None:
    assert site.manifest().stages[StageName("timers")].drain_batches >= 4
