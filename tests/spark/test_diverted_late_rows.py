"""Late rows that an expectation on the stage before a window diverts: each is in one of two tables, and the window drops none."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.status import read_status
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import StageName
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.failing import failing_from
from tests.spark.rows import Rows, assert_same, public

pytestmark = pytest.mark.spark

ROWS = 6_000
HOUR, DAY = pd.Timedelta("1 hour"), pd.Timedelta("1 day")
DAY_IS_OPEN = "date_trunc('day', ts) + INTERVAL 1 DAY > current_watermark"


def daily(rows: DataFrame) -> DataFrame:
    totals = rows.groupBy(F.window("ts", "1 day").alias("day"), "key").agg(F.sum("value").alias("total"))
    return totals.select("day.start", "key", "total")


def one_version_a_batch(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0).load(str(path))


def late_in(batches: list[pd.DataFrame], closed_after: Any) -> pd.DataFrame:
    """Returns the rows of each batch whose time of closing is not after the newest row of the batches before it, less one hour."""
    late, newest = [], None
    for batch in batches:
        if newest is not None:
            late.append(batch[closed_after(batch["ts"]) <= newest - HOUR])
        newest = batch["ts"].max() if newest is None else max(newest, batch["ts"].max())
    return pd.concat(late)


def totals(rows: pd.DataFrame) -> Rows:
    """Returns the totals of each day and key, as :func:`daily` computes them."""
    found: Rows = Rows()
    for (day, key), total in rows.groupby([rows["ts"].dt.floor("D"), "key"])["value"].sum().items():
        found[(day, key, int(total))] += 1
    return found


def test_late_rows_go_into_one_table_and_all_others_into_the_windows_after_a_failure(site: Site, tmp_path: Path) -> None:
    batches = inputs.in_order(ROWS, batches=6, late_fraction=0.05)
    for batch in batches:
        inputs.append(tmp_path / "events", batch)
    flag = tmp_path / "fails"
    flag.touch()
    pipeline, fail = Pipeline("late"), failing_from(ROWS // 2, flag)

    @pipeline.source(bounded=True, event_time="ts", watermark_delay="1 hour")
    def events(spark: SparkSession) -> DataFrame:
        return one_version_a_batch(spark, tmp_path / "events")

    @pipeline.stage(expect={"in_time": "ts > current_watermark"}, violations=DeltaSink(str(site.tables / "late")))
    def in_time(events: DataFrame) -> DataFrame:
        return events.withColumn("id", fail("id"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily_in_time(in_time: DataFrame) -> DataFrame:
        return daily(in_time)

    @pipeline.stage(expect={"open": DAY_IS_OPEN}, violations=DeltaSink(str(site.tables / "of closed days")))
    def of_open_days(events: DataFrame) -> DataFrame:
        return events

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily of open days")))
    def daily_of_open_days(of_open_days: DataFrame) -> DataFrame:
        return daily(of_open_days)

    with pytest.raises(InterruptedRunError):
        site.run(pipeline)
    flag.unlink()
    site.run(pipeline)

    everything = pd.concat(batches)
    late = late_in(batches, lambda at: at)
    closed = late_in(batches, lambda at: at.dt.floor("D") + DAY)
    assert 50 < len(closed) < len(late)
    assert_same(public(site.tables / "late", ["id"]), Rows((int(n),) for n in late["id"]))
    assert_same(public(site.tables / "of closed days", ["id"]), Rows((int(n),) for n in closed["id"]))
    assert_same(public(site.tables / "daily"), totals(everything[~everything["id"].isin(late["id"])]))
    assert_same(public(site.tables / "daily of open days"), totals(everything[~everything["id"].isin(closed["id"])]))
    stages = site.manifest().stages
    assert stages[StageName("in_time")].violations == {"in_time": len(late)}
    assert stages[StageName("daily_in_time")].late_rows == stages[StageName("daily_of_open_days")].late_rows == 0


def test_with_a_held_watermark_only_rows_behind_the_watermark_of_the_previous_round_are_late(site: Site, tmp_path: Path) -> None:
    def add(*days: str) -> None:
        at = pd.Series(pd.to_datetime(days, utc=True)).astype("datetime64[us, UTC]")
        inputs.append(tmp_path / "events", pd.DataFrame({"ts": at}))

    pipeline = Pipeline("rounds", on_end="suspend")

    @pipeline.source(bounded=True, event_time="ts", watermark_delay="1 day", hold_watermark=True)
    def events(spark: SparkSession) -> DataFrame:
        return one_version_a_batch(spark, tmp_path / "events")

    @pipeline.stage(
        sink=DeltaSink(str(site.tables / "in time")),
        expect={"in_time": "ts > current_watermark"},
        violations=DeltaSink(str(site.tables / "late")),
    )
    def in_time(events: DataFrame) -> DataFrame:
        return events

    def days(table: str) -> list[str]:
        return sorted(f"{at:%Y-%m-%d}" for (at,) in public(site.tables / table, ["ts"]).elements())

    add("2026-03-05")
    add("1969-01-01", "2026-03-01")
    site.run(pipeline)
    assert (days("in time"), days("late")) == (["1969-01-01", "2026-03-01", "2026-03-05"], [])
    add("2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06")
    site.run(pipeline)
    assert days("in time") == ["1969-01-01", "2026-03-01", "2026-03-05", "2026-03-05", "2026-03-06"]
    assert days("late") == ["2026-03-03", "2026-03-04"]
    shown = read_status(open_files(str(site.home)))
    assert shown is not None
    assert shown.stages[StageName("in_time")].violations == {"in_time": 2}
    newest = CheckpointStore(open_files(str(site.home))).history()[-1]
    assert (newest.checkpoint, newest.violations) == (site.manifest().checkpoint, {StageName("in_time"): {"in_time": 2}})


def test_a_stage_without_a_watermark_and_one_that_drops_late_rows_itself_are_refused(site: Site, tmp_path: Path) -> None:
    inputs.append(tmp_path / "events", inputs.in_order(6, batches=6, late_fraction=0)[0])

    def run(stage: Any, event_time: str | None) -> None:
        pipeline = Pipeline("late")

        @pipeline.source(bounded=True, event_time=event_time)
        def events(spark: SparkSession) -> DataFrame:
            return one_version_a_batch(spark, tmp_path / "events")

        declare = pipeline.stage(sink=DeltaSink(str(site.tables / "t")), expect={"in_time": "ts > current_watermark"}, name="t")
        declare(stage)
        site.run(pipeline)

    with pytest.raises(InvalidPipelineError, match="no input of the stage has an event time"):
        run(lambda events: events, None)
    with pytest.raises(InvalidPipelineError, match="drops late rows before a condition sees them"):
        run(lambda events: events.dropDuplicates(["key", "ts"]), "ts")
    with pytest.raises(InvalidPipelineError, match="returns Current_Watermark, but its expectations use such a column"):
        run(lambda events: events.withColumn("Current_Watermark", F.col("ts")), "ts")
    assert not site.tables.exists()
