"""The visible status of a running pipeline: lag, rows in flight at a checkpoint, and the end after a cancel."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.documents import InputLag, StageStatus
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.stages import source_watch
from tests.spark.conftest import Site
from tests.support.command_line import document, spark_jobs
from tests.support.growing_table import Events
from tests.support.otlp_receiver import Receiver, receiver
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


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver of the metrics that drivers export."""
    with receiver() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def test_rows_that_a_stage_has_not_read_are_its_lag_and_are_in_flight_in_an_unaligned_checkpoint(
    site: Site, tmp_path: Path, exported: Receiver
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
        running.until(lambda: exported.value("stream_pipeline.pending_records", stage="seldom", input="copied") == left)
        assert f"lag {left} rows" in spark_jobs("status", "--home", site.home).stdout
        spark_jobs("checkpoint", "--home", site.home)
        cancelled = document(spark_jobs("cancel", "--home", site.home, "--reason", "that was all", "--output", "json"))
        assert "Attempt 1 was cancelled: that was all." in str(running.ends())
    assert exported.value("stream_pipeline.number_of_completed_checkpoints", pipeline="live", home=running.files.url) == 1
    assert (cancelled["cancelled"], cancelled["attempt"], cancelled["checkpoint"]) == (True, 1, 1)
    (tried,) = document(spark_jobs("checkpoints", "--home", site.home, "--output", "json"))["checkpoints"]
    assert (tried["outcome"], tried["aligned"], tried["in_flight_rows"]) == ("complete", False, left)
    assert tried["in_flight_bytes"] > 0


def test_the_versions_of_a_table_and_the_files_of_a_folder_that_a_stage_has_not_read_are_its_lag(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watch, "INTERVAL_S", 0.0)
    events, folder = Events(tmp_path / "events"), tmp_path / "folder"
    folder.mkdir()
    (folder / "0.json").write_text('{"n": 0}\n')
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)

    @pipeline.source(bounded=False)
    def files(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").json(str(folder))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")), trigger_interval="1 hour")
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "numbers")), trigger_interval="1 hour")
    def numbers(files: DataFrame) -> DataFrame:
        return files

    with Running(site.spark, pipeline, site.home) as running:

        def lags() -> dict[str, InputLag]:
            stages = running.status.stages.values() if running.status else ()
            return {name: lag for stage in stages for name, lag in stage.lag.items()}

        running.until(lambda: lags() == {"events": InputLag(versions=0), "files": InputLag(files=0)})
        events.add(10)
        events.add(10)
        for number in (1, 2, 3):
            (folder / f"{number}.json").write_text('{"n": 1}\n')
        running.until(lambda: lags() == {"events": InputLag(versions=2), "files": InputLag(files=3)})


def test_a_receiver_of_metrics_that_hangs_delays_no_batch_no_checkpoint_and_no_end(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, goes_on = Events(tmp_path / "events"), Event()

    def hang() -> int:
        goes_on.wait()
        return 400

    with receiver(hang) as found:
        for name, value in {**found.environment, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}.items():
            monkeypatch.setenv(name, value)
        try:
            with Running(site.spark, two_stages(site, events), site.home) as running:
                running.until(found.asked.is_set)
                events.add(100)
                copied = StageName("copied")
                running.until(lambda: running.status and running.status.stages[copied].rows_in == events.rows)
                spark_jobs("checkpoint", "--home", site.home)
                spark_jobs("cancel", "--home", site.home, "--reason", "that was all")
                assert "that was all" in str(running.ends())
        finally:
            goes_on.set()
    assert site.checkpoints() == [1]
