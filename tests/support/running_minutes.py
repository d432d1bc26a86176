"""A running pipeline that counts events by minute."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.spark.rows import answer, public, public_count
from tests.support.growing_table import Events, events_of
from tests.support.running import Running


@pytest.fixture
def events(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    return events_of(request, tmp_path / "events", monkeypatch)


def three_stages(
    site: Site,
    events: Events,
    interval: str = "1 second",
    unaligned: bool = False,
    retained: int = 1,
    hold: Hold | None = None,
) -> Pipeline:
    """Declares a copy, a copy of the copy, and counts per minute. Each checkpoint is public. ``hold`` belongs to the second table."""
    alignment = {"unaligned": True} if unaligned else {"aligned_timeout": "never"}
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval=interval, retained=retained, **alignment))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(site.table("copied"), publish="every_checkpoint"))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(site.table("again"), publish="every_checkpoint", hold=hold))
    def again(copied: DataFrame) -> DataFrame:
        return copied.select("id")

    @pipeline.stage(sink=DeltaSink(site.table("minutes"), publish="every_checkpoint"))
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    return pipeline


def ids(site: Site, table: str, version: int | None = None) -> list[int]:
    path = site.table(table)
    return sorted(number for (number,) in public(path, ["id"], version).elements()) if public_count(path) is not None else []


def closed_minutes(site: Site, upto: int) -> DataFrame:
    """Returns the windows that the watermark has passed after row number ``upto``, from a batch query."""
    return all_minutes(site, upto).where(
        F.col("minute") + F.expr("INTERVAL 1 MINUTE") <= F.timestamp_seconds(F.lit(upto - 1 - 10))
    )


def all_minutes(site: Site, upto: int) -> DataFrame:
    """Returns every window of the rows up to number ``upto``, from a batch query."""
    rows = site.spark.range(upto).select(F.timestamp_seconds("id").alias("at"))
    counts = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
    return counts.select(F.col("minute.start").alias("minute"), "events")


def assert_shown(site: Site, events: Events) -> None:
    """Checks that the three tables show the results of all input rows so far.

    While a bounded input has not reached its end, the stages behind the first one have not begun.
    """
    assert ids(site, "copied") == list(range(events.rows))
    if events.bounded and not events.has_ended:
        assert ids(site, "again") == []
        assert public_count(site.table("minutes")) == 0
    else:
        assert ids(site, "again") == list(range(events.rows))
        assert public(site.table("minutes")) == answer(minutes_of(site, events))


def minutes_of(site: Site, events: Events) -> DataFrame:
    """Returns the windows that are public after all rows were read. If the input has ended, these are all windows."""
    return (all_minutes if events.has_ended else closed_minutes)(site, events.rows)


def goes_on_until_all_is_shown(site: Site, running: Running, events: Events) -> None:
    """Waits until every row is public. A bounded pipeline has then ended."""
    events.end()
    if events.bounded:
        running.stopped()
    else:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.table("minutes")) == minutes_of(site, events).count())
    assert_shown(site, events)


def staged_by(running: Running, stage: str, events: Events) -> Callable[[], bool]:
    def all_read() -> bool:
        status = running.status
        return status is not None and status.stages[StageName(stage)].rows_in >= events.rows

    return all_read
