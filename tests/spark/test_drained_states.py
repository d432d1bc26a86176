"""A drain leaves no row behind. Rows that Spark cannot flush are found on arrival, or fail the run before any row is public."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.command_line import spark_jobs
from tests.support.running import Running

pytestmark = pytest.mark.spark

FOR_EVER = "9999-12-31 00:00:00"
NEARLY = "9998-12-30 12:00:00"
"""A time before the last year, so that it is accepted. A window of 700 days that contains it ends after the end of time."""
ORDINARY = "2026-01-01 12:00:00"


def write(site: Site, *times: str | None, name: str = "in") -> None:
    at = site.spark.createDataFrame([(n, time) for n, time in enumerate(times)], "n long, at string")
    at.select("n", F.col("at").cast("timestamp")).write.format("delta").mode("append").save(str(site.home.parent / name))


def windows(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy(F.window("at", "700 days").alias("week"))
        .count()
        .select(F.col("week.start").cast("string").alias("start"), "count")
    )


def sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.session_window("at", "700 days").alias("week"), "n").count().select("n", "count")


def join(rows: DataFrame) -> DataFrame:
    later = rows.select(F.col("n").alias("m"), F.col("at").alias("later"))
    return rows.join(later, F.expr("n + 1000 = m AND later BETWEEN at AND at + INTERVAL 700 DAYS"), "left").select("n", "m")


def join_with_one_limit(rows: DataFrame) -> DataFrame:
    """Joins with a limit for one side: the watermark releases left rows only, because no later row would be too early for a right one."""
    later = rows.select(F.col("n").alias("m"), F.col("at").alias("later"))
    return rows.join(later, F.expr("n + 1000 = m AND later <= at + INTERVAL 700 DAYS"), "left").select("n", "m")


def distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["n"])


def groups(rows: DataFrame) -> DataFrame:
    def count(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield pd.DataFrame({"n": [key[0]], "rows": [state.get[0]]})
            state.remove()
            return
        frame = pd.concat(list(frames))
        state.update((len(frame),))
        state.setTimeoutTimestamp(253_402_300_800_000 if key[0] else 1_800_000_000_000)

    return rows.groupBy("n").applyInPandasWithState(
        count, "n long, rows long", "rows long", "append", GroupStateTimeout.EventTimeTimeout
    )


class Reminder(StatefulProcessor):
    """Reports in the year 2027 that a row came. For one row it reports in the year 10000."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for _ in rows:
            self.handle.registerTimer(253_402_300_800_000 if key[0] else 1_800_000_000_000)
        yield pd.DataFrame({"n": pd.Series([], dtype="int64")})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"n": [key[0]]})

    def close(self) -> None:
        """Releases nothing."""


def timers(rows: DataFrame) -> DataFrame:
    return rows.groupBy("n").transformWithStateInPandas(Reminder(), "n long", "append", "EventTime")


KINDS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "window": (windows, "1 row of a window"),
    "session": (sessions, "1 row of a window"),
    "join": (join, "rows? of a join"),
    "groups": (groups, r"1 row of a timeout.* at \+10000-01-01 00:00:00"),
    "timers": (timers, r"1 row of a timer.* at \+10000-01-01 00:00:00"),
}


def draining(site: Site, stage: Callable[[DataFrame], DataFrame], **source: Any) -> Pipeline:
    pipeline = Pipeline("contracts", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.source(event_time="at", **({"bounded": True} | source))
    def rows(spark: SparkSession) -> DataFrame:
        frame = spark.readStream.format("delta").load(str(site.home.parent / "in"))
        return frame.where("at < '9998-12-01'") if (site.home.parent / "mended").exists() else frame

    pipeline.stage(name="made", sink=DeltaSink(str(site.tables / "made")))(lambda rows: stage(rows))
    return pipeline


@pytest.mark.parametrize("name", ["window", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("session", "join"))])
def test_an_event_time_that_no_watermark_can_pass_is_refused_on_arrival(site: Site, name: str) -> None:
    stage, _ = KINDS[name]
    write(site, ORDINARY, FOR_EVER)
    pipeline = draining(site, stage)
    with pytest.raises(RejectedError, match="input 'rows' with an event time in the year 9999 or later"):
        site.run(pipeline, run_id="only")
    assert not public_count(site.tables / "made")
    (site.home.parent / "mended").touch()
    site.run(pipeline, run_id="only")
    assert public_count(site.tables / "made") == 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in ("session", "groups") else ()) for name in KINDS]
)
def test_rows_that_a_drain_leaves_in_the_state_fail_the_run_before_anything_is_public(site: Site, name: str) -> None:
    stage, message = KINDS[name]
    sets_timers = name in ("groups", "timers")  # pandas cannot give these such an event time
    write(site, ORDINARY, ORDINARY if sets_timers else NEARLY)
    pipeline = draining(site, stage)
    for _ in range(2):
        with pytest.raises(RejectedError, match=f"Stage 'made' is drained, but its state still has .*{message}"):
            site.run(pipeline, run_id="only")
    assert not public_count(site.tables / "made")
    if not sets_timers:
        (site.home.parent / "mended").touch()
        site.run(pipeline, fresh=True)
        assert public_count(site.tables / "made") == 1


def test_a_join_with_one_time_limit_reports_a_row_without_an_event_time(site: Site) -> None:
    """The expected rows come from a batch query. The right rows stay in the state, and were never held back."""
    write(site, ORDINARY, ORDINARY)
    pipeline = draining(site, join_with_one_limit)
    site.run(pipeline)
    batch = join_with_one_limit(site.spark.read.format("delta").load(str(site.home.parent / "in")))
    assert public(site.tables / "made") == Counter(tuple(row) for row in batch.collect())
    write(site, None)
    with pytest.raises(RejectedError, match="its state still has 1 row of a join"):
        site.run(pipeline, fresh=True, on_rewind="replace")


def test_windows_of_all_days_that_spark_can_flush_are_complete(site: Site) -> None:
    """The expected rows come from a batch query."""
    write(site, ORDINARY, "9998-12-31 23:59:59", "1970-01-02 00:00:00", ORDINARY)

    def days(rows: DataFrame) -> DataFrame:
        return (
            rows.groupBy(F.window("at", "1 day").alias("day"))
            .count()
            .select(F.col("day.start").cast("string").alias("start"), "count")
        )

    site.run(draining(site, days))
    batch = days(site.spark.read.format("delta").load(str(site.home.parent / "in")))
    assert public(site.tables / "made") == Counter(tuple(row) for row in batch.collect())


def test_an_expectation_diverts_rows_in_the_year_9999_as_other_bad_rows(site: Site) -> None:
    """The expected rows come from a batch query."""
    write(site, ORDINARY, FOR_EVER, ORDINARY, None, "9999-01-01 00:00:00", "9998-01-01 00:00:00")
    pipeline, path = Pipeline("contracts"), str(site.home.parent / "in")

    @pipeline.source(bounded=True, event_time="at")
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(path)

    @pipeline.stage(expect={"dated": "at < '9999-01-01'"}, violations=DeltaSink(str(site.tables / "undated")))
    def dated(rows: DataFrame) -> DataFrame:
        return rows

    @pipeline.stage(sink=DeltaSink(str(site.tables / "made")))
    def made(dated: DataFrame) -> DataFrame:
        return windows(dated)

    site.run(pipeline)
    batch = windows(site.spark.read.format("delta").load(path).where("at < '9999-01-01'"))
    assert public(site.tables / "made") == Counter(tuple(row) for row in batch.collect())
    aside = site.spark.read.format("delta").load(str(site.tables / "undated"))
    assert sorted(row["n"] for row in aside.collect()) == [1, 3, 4]


def test_a_stage_without_state_takes_any_event_time(site: Site) -> None:
    write(site, ORDINARY, FOR_EVER, "9999-12-31 23:59:59.999999")
    site.run(draining(site, lambda rows: rows.select("n")))
    assert public_count(site.tables / "made") == 3


def test_duplicates_are_dropped_with_any_event_time(site: Site) -> None:
    """Such a state holds no rows back: they are handed on when they come."""
    write(site, ORDINARY, FOR_EVER)
    write(site, ORDINARY, FOR_EVER)
    site.run(draining(site, lambda rows: rows.dropDuplicates(["n", "at"]).select("n")))
    assert public_count(site.tables / "made") == 2


def test_a_deduplication_within_a_held_watermark_leaves_no_key_in_its_state(site: Site) -> None:
    """The watermark moves once, at the end. Otherwise the run would fail, because rows are left in its state."""
    write(site, ORDINARY)
    write(site, ORDINARY)
    site.run(draining(site, distinct))
    assert public_count(site.tables / "made") == 1


def test_with_a_held_watermark_a_key_that_returns_after_the_delay_is_a_new_row_as_in_spark(site: Site) -> None:
    """The expected rows come from a query of Spark alone. Key 0 comes again after four days, and key 1 after ten minutes."""
    pipeline, path, alone = Pipeline("daily", on_end="suspend"), str(site.home.parent / "in"), site.home.parent / "alone"

    @pipeline.source(bounded=True, event_time="at", watermark_delay="1 hour", hold_watermark=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(path)

    pipeline.stage(name="made", sink=DeltaSink(str(site.tables / "made")))(lambda rows: distinct(rows))
    for times in ((ORDINARY, "2026-01-05 12:00:00"), ("2026-01-05 12:10:00",) * 2):
        write(site, *times)
        site.run(pipeline)
        stream = site.spark.readStream.format("delta").load(path).withWatermark("at", "1 hour")
        query = distinct(stream).writeStream.format("delta").option("checkpointLocation", f"{alone}.state")
        query.trigger(availableNow=True).start(str(alone)).awaitTermination()
    assert public(site.tables / "made") == public(alone)
    assert sorted(n for n, _ in public(alone).elements()) == [0, 0, 1]


def test_a_deduplication_within_the_watermark_refuses_an_event_time_that_it_could_not_forget(site: Site) -> None:
    write(site, ORDINARY, FOR_EVER)
    with pytest.raises(RejectedError, match="in the year 9999 or later"):
        site.run(draining(site, distinct))


def test_the_drain_of_a_running_pipeline_is_refused_if_it_leaves_rows_in_the_state(site: Site) -> None:
    write(site, ORDINARY)
    pipeline = draining(site, windows, bounded=False, watermark_delay="10 minutes")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("made")].rows_in >= 1)
        write(site, NEARLY)
        running.until(lambda: running.status and running.status.stages[StageName("made")].rows_in >= 2)
        refused = spark_jobs("stop", "--home", site.home, "--drain")
        assert refused.exit_code != 0
        assert "its state still has 1 row of a window" in " ".join(refused.output.split())
        assert "its state still has 1 row of a window" in str(running.ends())
