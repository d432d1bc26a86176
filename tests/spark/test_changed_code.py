"""Changed code goes on from a savepoint: some stages continue, some are new, and some are dropped."""

import time
from pathlib import Path

import pytest

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, RestoreFrom, StageState
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import SinkName, StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.command_line import spark_jobs
from tests.support.growing_table import Events
from tests.support.pipeline_code import code
from tests.support.running import Running, lose
from tests.support.running_minutes import closed_minutes, ids
from tests.support.stopped_pipelines import refused, stopped

pytestmark = pytest.mark.spark

STAGES = ("copied", "again", "minutes")
AFTER = 251
"""The number of rows when the changed code has run for a while. The savepoint was taken with 151 rows."""


@pytest.fixture
def events(tmp_path: Path) -> Events:
    made = Events(tmp_path / "events")
    made.add(150)
    return made


def from_savepoint(directory: Path, *, allow_dropped: bool = False) -> StartOptions:
    return StartOptions(restore=RestoreFrom(savepoint=open_files(str(directory)).url), allow_dropped=allow_dropped)


def test_a_new_stage_reads_a_source_from_its_beginning_and_a_stage_from_the_savepoint_on(
    site: Site, events: Events, tmp_path: Path
) -> None:
    stopped(site, code(site, events, *STAGES, interval="1 hour"), events, tmp_path / "savepoint")
    events.add(100)
    changed = code(site, events, *STAGES, "odd", "odd_minutes", "everything")
    with Running(site.spark, changed, site.home, options=from_savepoint(tmp_path / "savepoint")) as running:
        running.until(lambda: len(ids(site, "again")) == AFTER and len(ids(site, "everything")) == AFTER)
        running.until(lambda: len(ids(site, "odd")) == 50)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, AFTER).count())
        running.until(lambda: public_count(site.tables / "odd_minutes") == 1)
    assert ids(site, "copied") == ids(site, "again") == ids(site, "everything") == list(range(AFTER))
    assert ids(site, "odd") == list(range(151, AFTER, 2))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, AFTER)))
    found = sorted((int(minute.timestamp()), count) for minute, count in public(site.tables / "odd_minutes").elements())
    assert found == [(120, 15)]


def test_further_checkpoints_complete_before_the_first_one_after_a_savepoint_is_public(
    site: Site, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(site, code(site, events, "copied", interval="1 hour"), events, tmp_path / "savepoint")
    publish_sink = RoundRun.publish_sink

    def publish_late(run: RoundRun, manifest: Manifest, sink: SinkName) -> None:
        store = CheckpointStore(run.home)
        while (head := store.head()) is None or head.checkpoint < manifest.checkpoint + 2:
            run.site.cancellation.check()
            time.sleep(0.1)
        publish_sink(run, manifest, sink)

    monkeypatch.setattr(RoundRun, "publish_sink", publish_late)

    def all_are_public() -> bool:
        events.add(1)
        return len(ids(site, "copied")) >= AFTER

    with Running(site.spark, code(site, events, "copied"), site.home, options=from_savepoint(tmp_path / "savepoint")) as running:
        events.add(100)
        running.until(all_are_public)
    found = ids(site, "copied")
    assert found == list(range(len(found)))


# test_a_new_stage_reads_a_source_from_its_beginning_and_a_stage_from_the_savepoint_on begins stages by day.
@pytest.mark.nightly
@pytest.mark.parametrize("then", ["in place", "after a loss", "from a savepoint"])
def test_a_new_stage_with_a_late_first_batch_misses_no_row(site: Site, events: Events, tmp_path: Path, then: str) -> None:
    """The stage begins where the savepoint ends, at any time of its first batch and after any start."""
    stopped(site, code(site, events, "copied", interval="1 hour"), events, tmp_path / "savepoint")
    slow = code(site, events, "copied", "odd", unaligned=True, odd_every="1 hour")
    with Running(site.spark, slow, site.home, options=from_savepoint(tmp_path / "savepoint")) as running:
        running.until(lambda: (found := running.status) and found.stages[StageName("odd")].state is StageState.RUNNING)
        events.add(100)
        running.until(lambda: len(ids(site, "copied")) == AFTER)
        assert running.head().stages[StageName("odd")].batch == NO_BATCH
    changed, options = code(site, events, "copied", "odd"), None
    if then == "after a loss":
        lose(site.home / "work")
    elif then == "from a savepoint":
        with Running(site.spark, changed, site.home) as running:
            running.until(lambda: len(ids(site, "odd")) == 50)
            assert running.head().stages[StageName("odd")].batch == 0
            spark_jobs("stop", "--home", site.home, "--target", tmp_path / "next")
            running.stopped()
        lose(site.home)
        options = from_savepoint(tmp_path / "next")
    with Running(site.spark, changed, site.home, options=options) as running:
        events.add(100)
        running.until(lambda: len(ids(site, "copied")) == AFTER + 100 and len(ids(site, "odd")) == 100)
    assert ids(site, "odd") == list(range(151, AFTER + 100, 2))


@pytest.mark.nightly
def test_a_removed_stage_is_dropped_only_if_the_start_allows_it(site: Site, events: Events, tmp_path: Path) -> None:
    stopped(site, code(site, events, *STAGES, interval="1 hour"), events, tmp_path / "savepoint")
    events.add(100)
    fewer = code(site, events, "copied", "minutes")
    error = refused(site, fewer, site.home, from_savepoint(tmp_path / "savepoint"))
    assert isinstance(error, RejectedError)
    assert "the pipeline no longer has: again" in error.failed
    with Running(site.spark, fewer, site.home, options=from_savepoint(tmp_path / "savepoint", allow_dropped=True)) as running:
        running.until(lambda: len(ids(site, "copied")) == AFTER)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, AFTER).count())
        assert set(running.head().stages) == {"copied", "minutes"}
    assert ids(site, "again") == list(range(151))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, AFTER)))


def test_a_removed_sink_with_unpublished_rows_is_refused(site: Site, events: Events, tmp_path: Path) -> None:
    external = code(site, events, "copied", interval="1 hour")
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)
    pipeline.stage(sink=DeltaSink(str(site.tables / "copied")), name="copied")(lambda events: events.select("id", "at"))
    pipeline.stage(sink=DeltaSink(str(site.tables / "held"), publish="external"), name="held")(lambda copied: copied)
    stopped(site, pipeline, events, tmp_path / "savepoint")
    error = refused(site, external, site.home, from_savepoint(tmp_path / "savepoint", allow_dropped=True))
    assert isinstance(error, RejectedError)
    assert "151 rows" in error.failed
    assert "publish" in error.remedy


@pytest.mark.nightly
def test_a_watermark_delay_may_change(site: Site, events: Events, tmp_path: Path) -> None:
    stopped(site, code(site, events, *STAGES, interval="1 hour"), events, tmp_path / "savepoint")
    events.add(100)
    patient = code(site, events, *STAGES, delay="1 hour")
    with Running(site.spark, patient, site.home, options=from_savepoint(tmp_path / "savepoint")) as running:
        running.until(lambda: len(ids(site, "again")) == AFTER)
        assert CheckpointStore(running.files).head() is not None
    assert sorted(count for _, count in public(site.tables / "minutes").elements()) == [60, 60]
