"""A sink with target_file_size publishes few files. Rows, consumers and partitions are the same as without it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.errors import InterruptedRunError, SparkJobFailedError
from spark_jobs.protocol.ids import StageName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.growing_table import Events, bounded_at_night
from tests.support.running import Running
from tests.support.running_minutes import events

__all__ = ["events"]

pytestmark = pytest.mark.spark

BATCHES = 3
HOUR_S = 3_600
MAPPED = {"delta.columnMapping.mode": "name"}


def _pipeline(site: Site, **sink: object) -> Pipeline:
    pipeline = Pipeline("packed", on_end="suspend")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "packed"), target_file_size="10mb", **sink))  # type: ignore[arg-type]
    def packed(events: DataFrame) -> DataFrame:
        return events

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(packed: DataFrame) -> DataFrame:
        return packed

    return pipeline


def _files(table: Path) -> int:
    return len(DeltaTable(str(table)).file_uris())


@pytest.mark.every_version
@pytest.mark.parametrize(
    ("sink", "files"),
    [
        pytest.param({}, 1, id="plain", marks=pytest.mark.nightly),
        pytest.param({"partition_by": ["region"]}, len(inputs.REGIONS), id="partitioned"),
        pytest.param({"table_properties": MAPPED}, 1, id="mapped", marks=pytest.mark.nightly),
    ],
)
def test_a_packed_checkpoint_publishes_every_row_in_one_file_for_each_partition(
    site: Site, sink: dict[str, object], files: int
) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(6_000)[["id", "ts", "region"]], BATCHES)
    site.run(_pipeline(site, **sink))
    whole = answer(site.spark.read.format("delta").load(str(site.home.parent / "events")))
    assert site.manifest().stages["packed"].batch >= BATCHES - 1  # type: ignore[index]
    assert len(site.spark.read.format("delta").load(str(site.tables / "packed")).inputFiles()) == files
    assert_same(answer(site.spark.read.format("delta").load(str(site.tables / "packed"))), whole)
    assert_same(public(site.tables / "copy"), whole)


@pytest.mark.nightly
def test_files_that_were_packed_are_swept_two_rounds_later(site: Site, temporary: Path) -> None:
    waste: list[int] = []
    batches = 6
    for part in range(4):
        inputs.write_versions(site.home.parent / "events", inputs.events(600, seed=part)[["id", "ts", "region"]], batches)
        site.run(_pipeline(site))
        waste.append(len(list((site.tables / "packed").glob("*.parquet"))) - _files(site.tables / "packed"))
    whole = answer(site.spark.read.format("delta").load(str(site.home.parent / "events")))
    assert_same(public(site.tables / "packed"), whole)
    assert_same(public(site.tables / "copy"), whole)
    assert _files(site.tables / "packed") == 4
    # the parent of the newest checkpoint names the files that its consumer may read again: those of a batch with the whole round before
    assert waste[2] == waste[3] == 3 * batches
    assert list(temporary.iterdir()) == []


IsChecked = Callable[[str], bool] | None


class _LosesARow(DeltaJvm):
    def write_files(self, frame: DataFrame, path: str, prefix: str, is_checked: IsChecked = None) -> list[dict[str, Any]]:
        return super().write_files(frame.limit(frame.count() - 1), path, prefix, is_checked)


class _LosesItsExecutor(DeltaJvm):
    def write_files(self, frame: DataFrame, path: str, prefix: str, is_checked: IsChecked = None) -> list[dict[str, Any]]:
        failing = frame.withColumn("id", F.when(F.rand() < 2, F.raise_error(F.lit("no executor is left"))).otherwise(frame.id))
        return super().write_files(failing, path, prefix, is_checked)


class _Sleeps(DeltaJvm):
    """Takes an hour for the first packing, which the product must notice."""

    groups: ClassVar[list[str]] = []

    def write_files(self, frame: DataFrame, path: str, prefix: str, is_checked: IsChecked = None) -> list[dict[str, Any]]:
        if self.groups:
            return super().write_files(frame, path, prefix, is_checked)
        self.groups.append(str(self.spark.sparkContext.getLocalProperty("spark.jobGroup.id")))
        slept = F.expr(f"reflect('java.lang.Thread', 'sleep', {HOUR_S * 1_000}L)")
        return super().write_files(frame.where(F.coalesce(slept, F.lit("")) != "never"), path, prefix, is_checked)


def read(running: Running, events: Events) -> bool:
    """Returns True if the stage has read all rows."""
    return running.status is not None and running.status.stages[StageName("packed")].rows_in == events.rows


def asked(running: Running, name: str) -> CheckpointResponse:
    """Requests a checkpoint. Returns the answer."""
    requests, request = CheckpointRequests(running.files), request_id(name)
    requests.ask(request)
    running.until(lambda: requests.answer_of(request))
    answer = requests.answer_of(request)
    assert answer is not None
    return answer


@bounded_at_night
def test_a_checkpoint_that_packs_for_too_long_expires_and_the_job_ends_with_it(
    site: Site, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, tracker = site.tables / "packed", site.spark.sparkContext.statusTracker()
    monkeypatch.setattr("spark_jobs.runtime.checkpoints.packing.DeltaJvm", _Sleeps)
    monkeypatch.setattr(_Sleeps, "groups", [])
    pipeline = Pipeline("packed", checkpoint=CheckpointSettings(interval="1 hour", timeout="15 seconds", tolerable_failures=1))
    events.later(10)
    events.source(pipeline)
    pipeline.stage(sink=DeltaSink(str(table), target_file_size="10mb", publish="every_checkpoint"), name="packed")(
        lambda events: events
    )
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: read(running, events))
        events.add(10)
        running.until(lambda: read(running, events))
        failed = asked(running, "too-long")
        assert failed.error is not None
        assert (failed.checkpoint, failed.error.error) == (None, "DeadlineExceededError")
        (group,) = _Sleeps.groups
        running.until(lambda: not set(tracker.getJobIdsForGroup(group)) & set(tracker.getActiveJobsIds()))
        assert tracker.getJobIdsForGroup(group), "the job had begun"
        assert asked(running, "again").checkpoint == 1
    assert (public_count(table), _files(table)) == (events.rows, 1)


def test_rows_that_violate_a_constraint_of_their_table_are_packed_and_wait(site: Site, events: Events) -> None:
    table = site.tables / "packed"
    site.spark.sql(
        f"CREATE TABLE delta.`{table}` (id LONG, at TIMESTAMP) USING delta TBLPROPERTIES ('delta.constraints.none' = 'id < 0')"
    )
    pipeline = Pipeline("packed", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)
    pipeline.stage(sink=DeltaSink(str(table), target_file_size="10mb"), name="packed")(lambda events: events)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: read(running, events))
        events.add(10)
        running.until(lambda: read(running, events))
        assert asked(running, "first").checkpoint == 1
        running.until(lambda: running.status and running.status.blocked)
        assert public_count(table) == 0
        site.spark.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT none")
        running.until(lambda: public_count(table) == events.rows)
    assert _files(table) == 1


def test_no_checkpoint_completes_if_packing_loses_a_row_or_its_job_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(600)[["id", "ts", "region"]], BATCHES)
    whole = answer(site.spark.read.format("delta").load(str(site.home.parent / "events")))
    with monkeypatch.context() as patched:
        patched.setattr("spark_jobs.runtime.checkpoints.packing.DeltaJvm", _LosesARow)
        with pytest.raises(InterruptedRunError, match=f"changed the number of rows from {whole.total()} to {whole.total() - 1}"):
            site.run(_pipeline(site))
        patched.setattr("spark_jobs.runtime.checkpoints.packing.DeltaJvm", _LosesItsExecutor)
        with pytest.raises(SparkJobFailedError, match="'packed' could not be packed: .*no executor is left"):
            site.run(_pipeline(site))
    tried = CheckpointStore(open_files(str(site.home))).history()
    assert [each.failure and each.failure.error for each in tried] == ["InterruptedRunError", "SparkJobFailedError"]
    assert site.checkpoints() == []
    assert [public_count(site.tables / name) for name in ("packed", "copy")] == [0, 0]
    site.run(_pipeline(site))
    assert_same(public(site.tables / "packed"), whole)
    assert_same(public(site.tables / "copy"), whole)
