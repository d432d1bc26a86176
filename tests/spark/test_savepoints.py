"""A running pipeline's savepoint is moved, and starts a pipeline: without the old home, next to it, and after a drain."""

import re
from pathlib import Path
from shutil import move, rmtree
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.home.layout import TOMBSTONES
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish
from spark_jobs.protocol.errors import RejectedError, StorageError
from spark_jobs.protocol.ids import CheckpointId, SinkName, StageName
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.verification import named_by_home
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site, bounded_or_in_a_store_at_night
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.command_line import document, spark_jobs
from tests.support.file_systems import elsewhere
from tests.support.growing_table import Events, bounded_at_night, events_of
from tests.support.opened_tables import opened
from tests.support.places import in_a_store_at_night, in_a_store_too
from tests.support.running import Running
from tests.support.running_minutes import closed_minutes, goes_on_until_all_is_shown, ids, minutes_of, three_stages
from tests.support.stopped_pipelines import has_staged, refused, restored, stopped

__all__ = ["elsewhere"]

pytestmark = pytest.mark.spark


@pytest.fixture
def events(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = events_of(request, tmp_path / "events", monkeypatch)
    made.add(150)
    return made


# test_a_savepoint_in_an_object_store_is_all_that_the_next_start_needs restores one without its home by day.
@pytest.mark.nightly
@bounded_at_night
def test_a_savepoint_that_was_moved_to_another_file_system_is_restored_without_the_old_home(
    site: Site, events: Events, tmp_path: Path, elsewhere: Path
) -> None:
    """The pipeline had published nothing yet. The staged rows in the savepoint are taken over, too."""
    events.later(250)
    pipeline = three_stages(site, events, interval="1 hour")
    before = stopped(site, pipeline, events, site.savepoint, publish=Publish.EXTERNAL)
    site.lose()
    move(site.savepoint, elsewhere / "moved")
    events.add(250)
    options, home = restored(elsewhere / "moved", take_pending=True), elsewhere / "home"
    with Running(site.spark, three_stages(site, events), home, options=options) as running:
        goes_on_until_all_is_shown(site, running, events)
        first = running.store.manifest(running.store.ids()[0])
    after = running.head()
    assert after.stages[StageName("minutes")].query != before.stages[StageName("minutes")].query
    assert first.checkpoint <= after.checkpoint
    if events.bounded:
        return
    rmtree(elsewhere / "moved")
    events.add(100)
    with Running(site.spark, three_stages(site, events), home) as running:  # the home has all files that it needs
        running.until(lambda: len(ids(site, "again")) == events.rows)
    assert ids(site, "copied") == list(range(501))


@in_a_store_too
@pytest.mark.parametrize("pending", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["public", "pending"])
def test_a_savepoint_in_an_object_store_is_all_that_the_next_start_needs(
    site: Site, events: Events, store: str, tmp_path: Path, *, pending: bool
) -> None:
    savepoint, home = f"{store}/{tmp_path.name}/daily/stopped", site.place_for("other")
    stopped(site, three_stages(site, events), events, savepoint, publish=Publish.EXTERNAL if pending else None)
    site.lose()
    inspected = document(spark_jobs("inspect", savepoint, "--output", "json"))
    assert inspected["savepoint"] == savepoint
    events.add(100)
    options = restored(savepoint, take_pending=pending)
    with Running(site.spark, three_stages(site, events), home, options=options) as running:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.table("minutes")) == closed_minutes(site, events.rows).count())
    spark_jobs("dispose", savepoint, "--home", home)
    assert open_place(savepoint).names("") == []
    assert ids(site, "copied") == ids(site, "again") == list(range(events.rows))
    assert_same(public(site.table("minutes")), answer(closed_minutes(site, events.rows)))


@bounded_or_in_a_store_at_night
def test_a_fork_into_other_tables_leaves_the_original_alone(site: Site, events: Events) -> None:
    events.later(100, 100)
    pipeline = three_stages(site, events, interval="1 hour")
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, events.furthest, events.rows))
        spark_jobs("savepoint", "--home", site.place, "--request", "a")
        events.add(100)
        running.until(has_staged(running, events.furthest, events.rows))
        spark_jobs("checkpoint", "--home", site.place)
    fork = site.another("fork")
    events.add(100)
    options = restored(f"{site.place}/savepoints/savepoint-a")
    with Running(site.spark, three_stages(fork, events), fork.place, options=options) as running:
        running.until(lambda: len(ids(fork, events.furthest)) == 200)
    assert ids(fork, "copied") == list(range(151, 351))
    assert ids(site, "copied") == list(range(251))
    with Running(site.spark, three_stages(site, events), site.place) as running:
        goes_on_until_all_is_shown(site, running, events)


@in_a_store_at_night
@pytest.mark.every_version
def test_rows_published_after_a_savepoint_are_duplicated_only_if_the_start_allows_it(site: Site, events: Events) -> None:
    pipeline = three_stages(site, events, interval="1 hour")
    stopped(site, pipeline, events, site.savepoint)
    events.add(100)
    with Running(site.spark, three_stages(site, events), site.place) as running:
        running.until(lambda: len(ids(site, "again")) == 251)
    for home in (site.place, site.place_for("other")):
        error = refused(site, pipeline, home, restored(site.savepoint))
        assert isinstance(error, RejectedError)
        assert "they would be computed again" in error.failed
    with Running(site.spark, three_stages(site, events), site.place, options=restored(site.savepoint, keep=True)) as running:
        running.until(lambda: len(ids(site, "again")) == 351)
    assert sorted([*range(251), *range(151, 251)]) == ids(site, "copied")


@in_a_store_at_night
def test_a_home_can_restore_its_own_savepoint(site: Site, events: Events) -> None:
    pipeline = three_stages(site, events, interval="1 hour")
    stopped(site, pipeline, events, site.savepoint)
    events.add(100)
    with Running(site.spark, three_stages(site, events), site.place, options=restored(site.savepoint)) as running:
        running.until(lambda: len(ids(site, "again")) == 251)
        imported = running.store.manifest(CheckpointId(2)) if 2 in running.store.ids() else None
    assert ids(site, "copied") == list(range(251))
    assert imported is None or imported.checkpoint_kind is CheckpointKind.SAVEPOINT


def windows(site: Site, events: Events) -> Pipeline:
    """Declares counts per minute, each with the end of its minute."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(site.table("copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(site.table("minutes")))
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    return pipeline


@pytest.mark.nightly
def test_after_a_drain_no_later_row_is_late(site: Site, events: Events) -> None:
    """With 151 rows, the drain closes the third minute with 31 of its rows. Its later rows make a row of their own."""
    pipeline = windows(site, events)
    before = stopped(site, pipeline, events, site.savepoint, "--drain")
    assert before.stages[StageName("minutes")].watermark_before_drain_ms == 140_000
    error = refused(site, pipeline, site.place, restored(site.savepoint))
    assert "--allow-drained" in error.remedy
    events.add(150)
    with Running(site.spark, pipeline, site.place, options=restored(site.savepoint, allow_drained=True)) as running:
        running.until(lambda: len(ids(site, "copied")) == 301)
        running.until(lambda: public_count(site.table("minutes")) == 5)
        late = sum(running.store.manifest(k).stages[StageName("minutes")].late_rows for k in running.store.ids())
    found = sorted((int(minute.timestamp()), count) for minute, count in public(site.table("minutes")).elements())
    assert found == [(0, 60), (60, 60), (120, 29), (120, 31), (180, 60)]
    assert late == 0


AT_NIGHT = [
    pytest.param(step, marks=pytest.mark.nightly) for step in (Step.INCARNATION_CLOSE, Step.MANIFEST_CREATE, Step.RESTORE_END)
]


@pytest.mark.parametrize("dies_at", [Step.SAVEPOINT_IMPORT, *AT_NIGHT])
@bounded_or_in_a_store_at_night
def test_the_start_after_one_that_died_during_a_restore_still_restores_the_savepoint(
    site: Site, events: Events, dies_at: Step
) -> None:
    events.later(100)
    pipeline = windows(site, events)
    stopped(site, pipeline, events, site.savepoint)

    class Dies:
        def before(self, step: Step) -> None:
            pass

        def after(self, step: Step) -> None:
            if step is dies_at:
                raise StorageError("The disk is away.")

    with observed_by(Dies()):
        assert isinstance(refused(site, pipeline, site.place_for("other"), restored(site.savepoint)), StorageError)
    events.add(100)
    events.end()
    # The home remembers the savepoint with which it began.
    with Running(site.spark, pipeline, site.place_for("other")) as running:
        if events.bounded:
            running.stopped()
        running.until(lambda: len(ids(site, "copied")) == events.rows)
        running.until(lambda: public_count(site.table("minutes")) == minutes_of(site, events).count())
    assert ids(site, "copied") == list(range(events.rows))
    assert_same(public(site.table("minutes")), answer(minutes_of(site, events)))


@pytest.mark.nightly
def test_a_channel_whose_columns_have_spaces_in_their_names_is_restored(site: Site, events: Events) -> None:
    """Files store names with spaces under other names, which only the channel's own table knows."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)

    @pipeline.stage
    def renamed(events: DataFrame) -> DataFrame:
        return events.select(F.col("id").alias("the id"))

    @pipeline.stage(sink=DeltaSink(site.table("copied")))
    def copied(renamed: DataFrame) -> DataFrame:
        return renamed.select(F.col("the id").alias("id"))

    stopped(site, pipeline, events, site.savepoint)
    site.lose()
    events.add(100)
    with Running(site.spark, pipeline, site.place_for("other"), options=restored(site.savepoint)) as running:
        running.until(lambda: len(ids(site, "copied")) == 251)
    assert ids(site, "copied") == list(range(251))


class Changes:
    """A Delta table of changes of one key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, sequence: int, operation: str) -> None:
        row = pa.table({"id": pa.array([1], pa.int64()), "seq": pa.array([sequence], pa.int64()), "op": [operation]})
        write_deltalake(str(self.path), row, mode="append")

    def latest(self, site: Site, mode: Literal["upsert", "history"] = "upsert") -> Pipeline:
        pipeline = Pipeline("changes", checkpoint=CheckpointSettings(interval="1 second"))
        path = str(self.path)

        @pipeline.source(bounded=False)
        def changes(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(path)

        @pipeline.stage(
            sink=DeltaSink(site.table("latest"), mode=mode, keys=["id"], sequence_by="seq", apply_as_deletes="op = 'delete'")
        )
        def latest(changes: DataFrame) -> DataFrame:
            return changes

        return pipeline


def has_published(site: Site, manifest: Manifest, sink: str, rows: int) -> bool:
    """Returns True if a checkpoint with this number of rows is public."""
    cut = manifest.sinks.get(SinkName(sink))
    if cut is None or cut.actions.rows != rows:
        return False
    return opened(site.table(sink)).transaction_version(cut.app) == manifest.checkpoint


@in_a_store_at_night
@pytest.mark.nightly
def test_a_deleted_key_stays_deleted_after_a_restore(site: Site, tmp_path: Path) -> None:
    changes = Changes(tmp_path / "changes")
    pipeline = changes.latest(site)
    changes.add(1, "insert")
    with Running(site.spark, pipeline, site.place) as running:
        running.until(lambda: public_count(site.table("latest")) == 1)
        changes.add(3, "delete")
        running.until(lambda: public_count(site.table("latest")) == 0)
        spark_jobs("stop", "--home", site.place, "--target", site.savepoint)
        running.stopped()
    site.lose()
    changes.add(2, "late")
    with Running(site.spark, pipeline, site.place_for("other"), options=restored(site.savepoint)) as running:
        running.until(lambda: running.store.head() is not None)
        running.until(lambda: has_published(site, running.head(), "latest", rows=1))
        assert public_count(site.table("latest")) == 0, "the late row does not bring it back"
        changes.add(9, "insert")
        running.until(lambda: public_count(site.table("latest")) == 1)
    assert public(site.table("latest"), ["id", "seq"]) == {(1, 9): 1}
    home = open_place(site.place_for("other"))
    keys = [path for path in home.paths(TOMBSTONES) if re.search(r"/[^./][^/]*$", path)]
    assert {Path(path).suffix for path in keys} >= {".json", ".parquet"}
    for path in keys:
        whole = home.read(path)
        home.replace(path, b"\0" + whole[1:])
        assert f"{home.url}/{path}" in [error.evidence["path"] for error in named_by_home(home).verify()]
        home.replace(path, whole)
    assert named_by_home(home).verify() == []


@in_a_store_at_night
@pytest.mark.nightly
def test_a_delete_that_came_before_its_insert_counts_after_a_restore(site: Site, tmp_path: Path) -> None:
    changes = Changes(tmp_path / "changes")
    pipeline = changes.latest(site, "history")
    changes.add(3, "delete")
    with Running(site.spark, pipeline, site.place) as running:
        running.until(lambda: running.store.head() is not None)
        running.until(lambda: has_published(site, running.head(), "latest", rows=1))
        spark_jobs("stop", "--home", site.place, "--target", site.savepoint)
        running.stopped()
    site.lose()
    changes.add(2, "late")
    with Running(site.spark, pipeline, site.place_for("other"), options=restored(site.savepoint)) as running:
        running.until(lambda: public_count(site.table("latest")) == 1)
    assert public(site.table("latest"), ["valid_from", "valid_to", "is_current"]) == {(2, 3, False): 1}


def widening(site: Site, events: Events, *columns: str) -> Pipeline:
    """Declares a sink that accepts new columns, and a stage that reads its staged rows."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(site.table("copied"), schema_evolution="add_columns"))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", *((F.col("id") * 2).alias(column) for column in columns))

    @pipeline.stage(sink=DeltaSink(site.table("again")))
    def again(copied: DataFrame) -> DataFrame:
        return copied.select("id")

    return pipeline


@in_a_store_at_night
@pytest.mark.parametrize(
    "code",
    [
        pytest.param((), id="the old code"),
        pytest.param(("twice",), id="the new code", marks=pytest.mark.nightly),
        pytest.param(("twice", "more"), id="newer code", marks=pytest.mark.nightly),
    ],
)
def test_a_savepoint_can_be_restored_although_its_table_has_gained_columns(
    site: Site, events: Events, code: tuple[str, ...]
) -> None:
    stopped(site, widening(site, events), events, site.savepoint)
    events.add(100)
    with Running(site.spark, widening(site, events, "twice"), site.place) as running:
        running.until(lambda: len(ids(site, "again")) == 251)
    events.add(100)
    with Running(site.spark, widening(site, events, *code), site.place, options=restored(site.savepoint, keep=True)) as running:
        running.until(lambda: len(ids(site, "again")) == 251 + 200)
    assert ids(site, "copied") == ids(site, "again") == sorted([*range(351), *range(151, 251)])
    table = site.spark.read.format("delta").load(site.table("copied"))
    assert table.columns == ["id", *(code or ("twice",))]
    written = table.where("id >= 251").select("id", "twice").collect()
    assert {(row["id"], row["twice"]) for row in written} == {
        (number, number * 2 if code else None) for number in range(251, 351)
    }
