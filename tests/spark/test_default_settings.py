"""With default settings, one failure stops one thing. Only the times are shorter."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, consistent_versions
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.ids import SinkName, StageName
from tests.spark.conftest import Site
from tests.spark.rows import public_count
from tests.support import delta_logs
from tests.support.growing_table import Events
from tests.support.running import Running
from tests.support.running_minutes import closed_minutes, ids

pytestmark = pytest.mark.spark
LEAF = "leaf"
HEALTHY = ("copied", "other")
BEHIND_MAX = 2
"""In checkpoints. One begins with each interval."""


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path / "events")


def pipeline_of(site: Site, events: Events, leaf_of: Callable[[str], Column] = F.col, **settings: Any) -> Pipeline:
    """Declares a copy, a leaf and counts per minute that read the copy, and another leaf that reads the source itself."""
    pipeline = Pipeline("defaults", checkpoint=CheckpointSettings(interval="1 second", **settings))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(str(site.tables / LEAF)))
    def leaf(copied: DataFrame) -> DataFrame:
        return copied.select(leaf_of("id").alias("id"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "other")))
    def other(events: DataFrame) -> DataFrame:
        return events.select("id")

    return pipeline


def are_whole(site: Site, events: Events, tables: tuple[str, ...]) -> bool:
    closed = closed_minutes(site, events.rows).count()
    return all(len(ids(site, table)) == events.rows for table in tables) and public_count(site.tables / "minutes") == closed


def behind(running: Running, site: Site, table: str) -> int:
    """Returns the number of complete checkpoints with rows that a table does not show."""
    public = delta_logs.newest(site.tables / table, "txn")["version"]
    return sum(k > public and running.store.manifest(k).sinks[SinkName(table)].actions.rows > 0 for k in running.store.ids())


def test_healthy_tables_are_at_most_two_checkpoints_behind_while_another_stage_fails_at_a_bad_record(
    site: Site, events: Events
) -> None:
    def fails(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        if number == 60:
            raise ValueError("record 60 cannot be scored")
        return number

    pipeline = pipeline_of(site, events, F.udf(fails, "long", useArrow=False))
    most_behind = list[int]()
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: are_whole(site, events, (*HEALTHY, LEAF)))
        before = events.rows

        def keep_up() -> bool:
            most_behind.extend(behind(running, site, table) for table in HEALTHY)
            return are_whole(site, events, HEALTHY)

        for _ in range(3):
            events.add(70)
            running.until(keep_up)
        running.until(lambda: running.status and running.status.stages[StageName(LEAF)].state is StageState.FAILED)
        assert running.head().behind == (LEAF,)
        assert consistent_versions(running.store.home).behind == (LEAF,)
    assert max(most_behind) <= BEHIND_MAX
    assert ids(site, LEAF) == list(range(before))
    assert Attempts(running.files).numbers() == [1]


def test_a_batch_slower_than_the_checkpoint_timeout_delays_no_other_table_and_is_published_later(
    site: Site, events: Events, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    there = str(gate)

    def waits(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        while Path(there).exists():
            time.sleep(0.1)
        return number

    pipeline = pipeline_of(site, events, F.udf(waits, "long", useArrow=False), timeout="2 seconds")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: are_whole(site, events, (*HEALTHY, LEAF)))
        before, most_behind = events.rows, list[int]()

        def keep_up() -> bool:
            most_behind.extend(behind(running, site, table) for table in HEALTHY)
            return are_whole(site, events, HEALTHY)

        gate.touch()
        try:
            events.add(10)
            running.until(keep_up)
            first = running.head()
            for _ in range(3):
                events.add(10)
                running.until(keep_up)
            assert (running.head().began_at - first.began_at).total_seconds() > 2, "longer than the timeout"
            assert ids(site, LEAF) == list(range(before))
        finally:
            gate.unlink()
        running.until(lambda: are_whole(site, events, (*HEALTHY, LEAF)))
    assert max(most_behind) <= BEHIND_MAX
    assert ids(site, LEAF) == list(range(events.rows))
    assert Attempts(running.files).numbers() == [1]
