"""A round of bounded inputs is interrupted by a stop, a drain, a cancel, or the loss of all files except home and tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.home.layout import MANIFESTS
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, OnEnd, RestoreFrom
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.support.bounded_pipeline import ROWS_A_PART, Answer, Changes, Params, admitted, orders, public
from tests.support.opened_tables import opened
from tests.support.places import in_a_store_at_night
from tests.support.running import Running

pytestmark = pytest.mark.spark

PARTS = 6
NOTHING: Answer = {"windows": [], "newest": []}


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    return Changes(tmp_path, PARTS)


def parameters(site: Site, changes: Changes) -> dict[str, Any]:
    return {"events": str(changes.path), "warehouse": site.warehouse}


@contextmanager
def at_part(site: Site, pipeline: Pipeline, changes: Changes, part: int, **options: Any) -> Iterator[Running]:
    """Starts a run. Its first stage has finished the batches before ``part``, and waits in that batch."""
    changes.admit(part)
    with Running(site.spark, pipeline, site.place, **parameters(site, changes), **options) as running:
        running.until(lambda: running.status and running.status.stages["admit"].rows_in >= part * ROWS_A_PART)  # type: ignore[index]
        yield running


def checkpointed(running: Running, changes: Changes, part: int) -> None:
    """Lets the batch before ``part`` go on, and waits for a checkpoint."""
    before = max(running.store.taken(), default=0)
    changes.admit(part)
    running.until(lambda: max(running.store.taken(), default=0) > before)


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> Event:
    """An event that is set once a stage is held, so that no batch begins after the current one."""
    seen, close = Event(), Gate.close

    def closes(gate: Gate) -> None:
        close(gate)
        seen.set()

    monkeypatch.setattr(Gate, "close", closes)
    return seen


def places(at_night: bool) -> list[Any]:
    """Returns the parameters with and without the work directory. One of them is for the night."""
    names = {False: "in place", True: "with only home and tables"}
    return [pytest.param(lost, id=name, marks=pytest.mark.nightly if lost is at_night else ()) for lost, name in names.items()]


BY_DAY_IN_PLACE, BY_NIGHT_IN_PLACE = places(at_night=True), places(at_night=False)


def asked(running: Running, changes: Changes, held: Event, wanted: Wanted, *, drain: bool = False) -> CheckpointResponse:
    """Asks in the middle of the third batch. Returns the answer. A stop waits for the end of that batch, a checkpoint does not."""
    held.clear()
    requests, request = CheckpointRequests(running.files), request_id("mine", wanted)
    assert requests.ask(request, drain=drain) is None
    if wanted is Wanted.STOP:
        running.until(held.is_set)
        changes.admit(4 if drain else 3)  # a drain runs the planned batch, too
    running.until(lambda: requests.answer_of(request))
    found = requests.answer_of(request)
    assert found is not None
    assert found.error is None, found.error
    return found


def ends(site: Site, pipeline: Pipeline, changes: Changes, run: str = "last", options: StartOptions | None = None) -> Manifest:
    """Runs the rest of the round. Returns the final checkpoint."""
    changes.admit(changes.parts)
    with Running(site.spark, pipeline, site.place, run=run, options=options, **parameters(site, changes)) as running:
        running.stopped()
        return running.head()


def test_a_short_run_takes_only_the_final_checkpoint(site: Site, changes: Changes) -> None:
    manifest = ends(site, orders(), changes)
    assert (manifest.checkpoint, manifest.checkpoint_kind, manifest.drained) == (1, CheckpointKind.FINAL, True)
    assert public(site.warehouse) == changes.answer()


# test_a_stop_interrupts_the_round_and_the_next_start_goes_on_with_it goes on from a checkpoint by day.
@in_a_store_at_night
@pytest.mark.nightly
@pytest.mark.parametrize("work_is_lost", BY_NIGHT_IN_PLACE)
def test_a_round_that_is_cancelled_goes_on_from_its_newest_checkpoint(
    site: Site, changes: Changes, held: Event, work_is_lost: bool
) -> None:
    pipeline = orders()
    with at_part(site, pipeline, changes, 2) as running:
        assert asked(running, changes, held, Wanted.CHECKPOINT).checkpoint == 1
        assert running.head().checkpoint_kind is CheckpointKind.PERIODIC
        assert public(site.warehouse) == NOTHING
    if work_is_lost:
        site.lose_work()
    manifest = ends(site, pipeline, changes)
    assert (manifest.checkpoint, manifest.parent, manifest.checkpoint_kind) == (2, 1, CheckpointKind.FINAL)
    assert public(site.warehouse) == changes.answer()


def test_checkpoints_are_taken_at_the_interval_and_publish_nothing(site: Site, changes: Changes) -> None:
    pipeline = orders("500 milliseconds")
    with at_part(site, pipeline, changes, 1) as running:
        for part in range(2, 5):
            checkpointed(running, changes, part)
        assert running.head().checkpoint_kind is CheckpointKind.PERIODIC
        assert public(site.warehouse) == NOTHING
        changes.admit(PARTS)
        running.stopped()
    assert public(site.warehouse) == changes.answer()


@in_a_store_at_night
def test_a_stage_can_begin_after_the_checkpoint_that_the_attempt_restored_was_deleted(site: Site, changes: Changes) -> None:
    pipeline = orders("500 milliseconds")
    with at_part(site, pipeline, changes, 1) as running:
        running.until(running.store.taken)
        restored = running.head().checkpoint
    with Running(site.spark, pipeline, site.place, **parameters(site, changes)) as running:
        for part in range(2, PARTS):
            checkpointed(running, changes, part)
        assert restored not in running.store.taken()
        changes.admit(PARTS)
        running.stopped()
    assert public(site.warehouse) == changes.answer()


@in_a_store_at_night
@pytest.mark.nightly
@pytest.mark.parametrize("work_is_lost", [False, True], ids=["in place", "with only home and tables"])
def test_a_round_whose_checkpoints_are_public_keeps_few_of_them_while_a_stage_waits_and_loses_no_file(
    site: Site, changes: Changes, work_is_lost: bool
) -> None:
    """The public files are packed. Only checkpoints name the unpacked files, and these checkpoints are discarded."""
    checkpoints = CheckpointSettings(interval="100 milliseconds")
    pipeline = Pipeline("copies", params=Params, checkpoint=checkpoints, on_end="suspend")

    @pipeline.source(bounded=True)
    def changed(spark: SparkSession, params: Params) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(params.events)

    sink = DeltaSink("{warehouse}/admit", target_file_size="10mb", publish="every_checkpoint")

    @pipeline.stage(sink=sink)
    def admit(changed: DataFrame, params: Params) -> DataFrame:
        return changed.withColumn("part", admitted(params.events, "admit")).repartition(2)

    @pipeline.stage(sink=DeltaSink("{warehouse}/again"))
    def again(admit: DataFrame) -> DataFrame:
        return admit

    def ids(table: str) -> list[int]:
        return sorted(opened(site.table(table)).to_pyarrow_table()["id"].to_pylist())

    def goes_on_to(running: Running, part: int) -> None:
        checkpointed(running, changes, part)
        assert len(running.store.taken()) <= 3
        assert len(site.files.names("state/admit")) <= 5, "of the first try the query's id; a try is under way"

    with at_part(site, pipeline, changes, 1) as running:
        for part in range(2, 5):
            goes_on_to(running, part)
    if work_is_lost:
        site.lose_work()
    with Running(site.spark, pipeline, site.place, **parameters(site, changes)) as running:
        goes_on_to(running, 5)
        changes.admit(PARTS)
        running.stopped()
    every = list(range(PARTS * ROWS_A_PART))
    assert ids("admit") == ids("again") == every
    changes.deliver(2)
    for _ in range(4):
        ends(site, pipeline, changes, run=f"next {changes.parts}")
        changes.deliver(1)
    assert ids("admit") == ids("again") == list(range((changes.parts - 1) * ROWS_A_PART))
    public = opened(site.table("admit")).file_uris()
    files = [name for name in open_place(site.table("admit")).names("") if name.endswith(".parquet")]
    assert len(files) <= len(public) + 6, "what was packed is gone"


@in_a_store_at_night
@pytest.mark.parametrize("work_is_lost", BY_DAY_IN_PLACE)
def test_a_stop_interrupts_the_round_and_the_next_start_goes_on_with_it(
    site: Site, changes: Changes, held: Event, work_is_lost: bool
) -> None:
    pipeline = orders()
    with at_part(site, pipeline, changes, 2) as running:
        answer = asked(running, changes, held, Wanted.STOP)
        running.stopped()
        assert (running.head().checkpoint_kind, answer.drained) == (CheckpointKind.STOP, False)
    assert public(site.warehouse) == NOTHING
    changes.deliver(1)  # after the start of the round, which does not read it
    changes.parts -= 1
    if work_is_lost:
        site.lose_work()
    manifest = ends(site, pipeline, changes)
    assert (manifest.round, manifest.checkpoint_kind) == (1, CheckpointKind.FINAL)
    assert public(site.warehouse) == changes.answer()


@in_a_store_at_night
def test_a_drain_ends_the_round_where_it_is(site: Site, changes: Changes, held: Event) -> None:
    pipeline = orders()
    with at_part(site, pipeline, changes, 2) as running:
        answer = asked(running, changes, held, Wanted.STOP, drain=True)
        running.stopped()
        assert (answer.drained, running.head().checkpoint_kind) == (True, CheckpointKind.STOP)
        read = running.head().stages[StageName("admit")].batch + 1
    assert 3 <= read < PARTS
    assert public(site.warehouse) == changes.answer(read)
    site.files.delete(MANIFESTS)
    with Running(site.spark, pipeline, site.place, **parameters(site, changes)) as running:
        error = running.ends()
    assert "the home does not have it" in str(error), "otherwise the rest of the round would count as public, and be lost"


@in_a_store_at_night
@pytest.mark.parametrize("work_is_lost", BY_NIGHT_IN_PLACE)
def test_the_next_round_of_a_suspended_pipeline_has_all_of_its_state(site: Site, changes: Changes, work_is_lost: bool) -> None:
    pipeline = orders(on_end="suspend")
    ends(site, pipeline, changes, run="monday")
    assert len(public(site.warehouse)["windows"]) == len(changes.answer()["windows"]) - 1, "the last window is open"
    if work_is_lost:
        site.lose_work()
    changes.deliver(2)
    manifest = ends(site, pipeline, changes, run="tuesday", options=StartOptions(on_end=OnEnd.DRAIN))
    assert (manifest.round, manifest.checkpoint) == (2, 2)
    assert public(site.warehouse) == changes.answer()


# test_savepoints.py forks a savepoint by day, and test_rescaling.py changes the partitions.
@in_a_store_at_night
@pytest.mark.nightly
def test_a_savepoint_of_a_round_is_forked_into_other_tables_with_other_partitions(
    site: Site, changes: Changes, held: Event
) -> None:
    with at_part(site, orders(), changes, 2) as running:
        savepoint = asked(running, changes, held, Wanted.SAVEPOINT).savepoint
    assert savepoint is not None
    fork = site.another("fork")
    options = StartOptions(restore=RestoreFrom(savepoint=savepoint), state_partitions=3)
    ends(fork, orders(), changes, options=options)
    assert public(fork.warehouse) == changes.answer()
    ends(site, orders(), changes)
    assert public(site.warehouse) == changes.answer(), "the pipeline that was forked goes on"
