"""The visible status of a running pipeline: lag, rows in flight at a checkpoint, and the end after a cancel."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.documents import StageStatus
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.support.command_line import document, spark_jobs
from tests.support.growing_table import Events
from tests.support.running import Running

pytestmark = pytest.mark.spark


def two_stages(site: Site, events: Events) -> Pipeline:
    """Declares a copy, and behind it a stage with one batch per hour."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour", unaligned=True))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "seldom")), trigger_interval="1 hour")
    def seldom(copied: DataFrame) -> DataFrame:
        return copied

    return pipeline


def test_what_a_stage_has_not_read_is_its_lag_and_is_in_flight_in_an_unaligned_checkpoint_that_outlives_a_cancel(
    site: Site, tmp_path: Path
) -> None:
    events = Events(tmp_path / "events")
    with Running(site.spark, two_stages(site, events), site.home) as running:

        def stage(name: str) -> StageStatus | None:
            return running.status.stages[StageName(name)] if running.status else None

        running.until(lambda: (found := stage("seldom")) and found.batch == 0)
        events.add(100)
        running.until(lambda: (found := stage("copied")) and found.rows_in == events.rows)
        seldom = stage("seldom")
        assert seldom is not None
        left = events.rows - seldom.rows_in
        assert left >= 100
        running.until(lambda: (found := stage("seldom")) and found.lag and found.lag["copied"].rows == left)
        assert f"lag {left} rows" in spark_jobs("status", "--home", site.home).stdout
        spark_jobs("checkpoint", "--home", site.home)
        cancelled = document(spark_jobs("cancel", "--home", site.home, "--reason", "that was all", "--output", "json"))
        assert "Attempt 1 was cancelled: that was all." in str(running.ends())
    assert (cancelled["cancelled"], cancelled["attempt"], cancelled["checkpoint"]) == (True, 1, 1)
    (tried,) = document(spark_jobs("checkpoints", "--home", site.home, "--output", "json"))["checkpoints"]
    assert (tried["outcome"], tried["aligned"], tried["in_flight_rows"]) == ("complete", False, left)
    assert tried["in_flight_bytes"] > 0
