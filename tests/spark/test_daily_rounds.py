"""A pipeline suspends after each day, and goes on the next day with its state intact."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, assert_same, public
from tests.support.places import IN_A_STORE, IN_A_STORE_AT_NIGHT

pytestmark = pytest.mark.spark

DAYS = 3
DELAY = pd.Timedelta("1 hour")
SINKS = ("hourly", "six_hourly", "distinct", "followed")


def _days() -> list[pd.DataFrame]:
    """Returns events of three days, each in no order. Some events of a day's last hour come on the next day."""
    events = inputs.events(days=DAYS)[["id", "ts", "team", "value"]]
    day = (events["ts"] - inputs.BEGIN) // pd.Timedelta("1 day")
    into_day = (events["ts"] - inputs.BEGIN) % pd.Timedelta("1 day")
    random = np.random.default_rng(5)
    held_over = (into_day > pd.Timedelta("23 hours 5 minutes")) & (random.random(len(events)) < 0.5) & (day < DAYS - 1)
    arrives = day.fillna(pd.Series(random.integers(0, DAYS, len(events)))) + held_over
    return [events[arrives == number] for number in range(DAYS)]


def _pipeline(site: Site) -> Pipeline:
    pipeline = Pipeline("daily", on_end="suspend", checkpoint=CheckpointSettings(retained=DAYS))

    def sink(name: str) -> DeltaSink:
        return DeltaSink(site.table(name))

    @pipeline.source(bounded=True, event_time="ts", watermark_delay="1 hour", hold_watermark=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 2).load(str(site.root / "events"))

    @pipeline.stage(sink=sink("hourly"))
    def hourly(events: DataFrame) -> DataFrame:
        totals = events.groupBy(F.window("ts", "1 hour").alias("hour"), "team").agg(F.sum("value").alias("total"))
        return totals.select("hour", F.window_time("hour").alias("hour_end"), "team", "total")

    @pipeline.stage(sink=sink("six_hourly"))
    def six_hourly(hourly: DataFrame) -> DataFrame:
        return hourly.groupBy(F.window("hour_end", "6 hours")).agg(F.sum("total").alias("total"))

    @pipeline.stage(sink=sink("distinct"))
    def distinct(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["id", "ts"]).select("id", "ts")

    @pipeline.stage(sink=sink("followed"), inputs={"first": "events", "second": "events"})
    def followed(first: DataFrame, second: DataFrame) -> DataFrame:
        first, second = (
            side.where("ts IS NOT NULL") for side in (first, second)
        )  # a row without a time would stay in the join for ever
        big, bigger = first.where("value > 900").alias("a"), second.where("value > 980").alias("b")
        soon = F.expr("a.team = b.team AND b.ts > a.ts AND b.ts <= a.ts + INTERVAL 20 MINUTES")
        return big.join(bigger, soon, "left_outer").selectExpr("a.id AS id", "a.ts AS ts", "b.id AS by")

    return pipeline


@dataclass(frozen=True)
class Ran:
    site: Site
    after: list[dict[str, Rows]]
    """For each day: the rows that were public after it."""


@pytest.fixture(scope="module", params=IN_A_STORE_AT_NIGHT)
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ran]:
    """A pipeline that has run on three days, with a drain on the last one."""
    root = tmp_path_factory.mktemp("daily")
    store = f"{request.getfixturevalue('store')}/{root.name}" if request.param == IN_A_STORE else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield _run_each_day(Site(spark, root, store))


def _run_each_day(site: Site) -> Ran:
    after = []
    for number, day in enumerate(_days()):
        inputs.write_versions(site.root / "events", day, 3)
        last = number == DAYS - 1
        site.run(_pipeline(site), run_id=f"day {number}", on_end="drain" if last else None)
        after.append({name: public(site.table(name)) for name in SINKS})
    return Ran(site, after)


@pytest.fixture(scope="module")
def arrived(spark: SparkSession, ran: Ran) -> SparkSession:
    """A session with one view per day of all events that had arrived by then."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for day in range(DAYS):
        reader = session.read.format("delta").option("versionAsOf", 3 * (day + 1) - 1)
        reader.load(str(ran.site.root / "events")).createOrReplaceTempView(f"arrived{day}")
    return session


HOURLY = (
    "SELECT window hour, window.end - INTERVAL 1 MICROSECOND hour_end, team, sum(value) total FROM {arrived} "
    "GROUP BY window(ts, '1 hour'), team"
)
SIX_HOURLY = "SELECT window, sum(value) total FROM {arrived} GROUP BY window(ts, '6 hours')"
DISTINCT = "SELECT DISTINCT id, ts FROM {arrived}"
FOLLOWED = (
    "SELECT a.id, a.ts, b.id by FROM (SELECT * FROM {arrived} WHERE value > 900 AND ts IS NOT NULL) a LEFT JOIN {arrived} b "
    "ON a.team = b.team AND b.value > 980 AND b.ts > a.ts AND b.ts <= a.ts + INTERVAL 20 MINUTES"
)


@pytest.mark.parametrize(
    ("sink", "query"),
    {"hourly": HOURLY, "six_hourly": SIX_HOURLY, "distinct": DISTINCT, "followed": FOLLOWED}.items(),
)
def test_all_days_together_equal_one_batch_query(ran: Ran, arrived: SparkSession, sink: str, query: str) -> None:
    assert_same(ran.after[-1][sink], answer(arrived.sql(query.format(arrived=f"arrived{DAYS - 1}"))))


@pytest.mark.parametrize("day", range(DAYS - 1))
def test_after_each_day_exactly_the_windows_that_ended_before_the_watermark_are_public(
    ran: Ran, arrived: SparkSession, day: int
) -> None:
    closed = f"SELECT * FROM ({HOURLY}) WHERE hour.end <= (SELECT max(ts) FROM {{arrived}}) - INTERVAL 1 HOUR"
    assert_same(ran.after[day]["hourly"], answer(arrived.sql(closed.format(arrived=f"arrived{day}"))))


@pytest.mark.parametrize("day", range(DAYS - 1))
def test_a_second_stage_counts_from_the_newest_row_of_the_first(ran: Ran, arrived: SparkSession, day: int) -> None:
    newest = max(row[1] for row in ran.after[day]["hourly"])
    until = f"SELECT * FROM ({SIX_HOURLY}) WHERE window.end <= timestamp '{newest}' - INTERVAL 1 HOUR"
    assert_same(ran.after[day]["six_hourly"], answer(arrived.sql(until.format(arrived=f"arrived{day}"))))


@pytest.mark.parametrize("day", range(DAYS - 1))
def test_rows_that_need_no_window_are_public_on_the_same_day(ran: Ran, arrived: SparkSession, day: int) -> None:
    assert_same(ran.after[day]["distinct"], answer(arrived.sql(DISTINCT.format(arrived=f"arrived{day}"))))


def test_each_day_has_one_checkpoint_whose_parent_is_that_of_the_day_before(ran: Ran) -> None:
    manifests = [ran.site.manifest(number) for number in ran.site.checkpoints()]
    assert [manifest.parent for manifest in manifests] == [None, 1, 2]
    assert [manifest.drained for manifest in manifests] == [False, False, True]
    assert [manifest.round for manifest in manifests] == [1, 2, 3]


def test_no_row_of_any_day_was_late(ran: Ran) -> None:
    for number in ran.site.checkpoints():
        assert {cut.late_rows for cut in ran.site.manifest(number).stages.values()} == {0}


def test_a_day_without_new_rows_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(spark, tmp_path)
    inputs.append(tmp_path / "events", _days()[0].head(500))
    site.run(_pipeline(site), run_id="first")
    before = {name: public(site.table(name)) for name in SINKS}
    site.run(_pipeline(site), run_id="second")
    assert {name: public(site.table(name)) for name in SINKS} == before
    assert site.checkpoints() == [1, 2]
