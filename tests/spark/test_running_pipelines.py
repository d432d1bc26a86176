"""Pipelines whose inputs have no end: checkpoints while they run, and restarts in place."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline, RestartStrategy, consistent_versions
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import Manifest, RunState, StageState
from spark_jobs.protocol.errors import FencedError, RejectedError, RestartsExhaustedError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, SinkName, StageName
from spark_jobs.protocol.restart_settings import NoRestart
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication import publisher
from spark_jobs.publication.evidence import versions_with
from spark_jobs.runtime.checkpoints import exports
from spark_jobs.runtime.start import attempt, restore
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support import delta_logs
from tests.support.growing_table import Events, bounded_at_night, bounded_too
from tests.support.running import Running, lose
from tests.support.running_minutes import (
    all_minutes,
    assert_shown,
    closed_minutes,
    events,
    goes_on_until_all_is_shown,
    ids,
    staged_by,
    three_stages,
)

__all__ = ["events"]

pytestmark = pytest.mark.spark
AGAIN = SinkName("again")


def version_at(site: Site, manifest: Manifest, table: str) -> int:
    """Returns the version of the table that made a checkpoint public, from the table's own history."""
    app = manifest.sinks[SinkName(table)].app
    for entry in DeltaTable(str(site.tables / table)).history():
        version = int(entry["version"])
        if DeltaTable(str(site.tables / table), version=version).transaction_version(app) == manifest.checkpoint:
            return version
    raise AssertionError(f"{table} has no version of checkpoint {manifest.checkpoint}")


def files_by_batch(store: CheckpointStore, manifest: Manifest, stage: StageName) -> dict[int, list[str]]:
    """Returns the files that a checkpoint names in a stage's channel, by batch."""
    channel = manifest.stages[stage].channel
    assert channel is not None
    return {line["batch"]: [add["path"] for add in line["adds"]] for line in store.read_channel(channel)}


@pytest.mark.nightly
def test_rows_become_public_with_each_checkpoint_while_the_pipeline_runs(site: Site, events: Events) -> None:
    """The test uses one attempt. A test below comes to the same answer in two."""
    with Running(site.spark, three_stages(site, events), site.home) as running:
        for rows in (200, 300):
            events.add(rows)
            running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, 501).count())
    assert ids(site, "copied") == ids(site, "again") == list(range(501))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, 501)))


# test_a_consumer_is_never_ahead_in_an_unaligned_checkpoint compares the tables by day, and tests/simulation has aligned
# checkpoints.
@pytest.mark.nightly
def test_an_aligned_checkpoint_shows_one_prefix_in_every_table(site: Site, events: Events) -> None:
    with Running(site.spark, three_stages(site, events, retained=100), site.home) as running:
        running.until(lambda: len(ids(site, "copied")) == events.rows)
        for _ in range(3):
            running.until(lambda: len(shown(site, "again")) == events.rows)
            events.add(50)
        running.until(lambda: len(shown(site, "again")) == events.rows)
        manifests = [running.store.manifest(k) for k in running.store.ids()]
    assert all(manifest.aligned for manifest in manifests)
    compared = [
        (ids(site, "copied", version_at(site, manifest, "copied")), ids(site, "again", version_at(site, manifest, "again")))
        for manifest in manifests
        if versions_with(manifest)
    ]
    assert all(copied == again for copied, again in compared)
    assert len({len(copied) for copied, _ in compared}) > 3, "checkpoints of one prefix alone prove nothing"
    assert_complete_until_the_watermark(site, [manifest for manifest in manifests if versions_with(manifest)], events.rows)


def assert_complete_until_the_watermark(site: Site, manifests: list[Manifest], rows: int) -> None:
    """Checks that every version of a table has all windows that end by the watermark that the last batch of its checkpoint saw."""
    windows, proved = answer(all_minutes(site, rows)), 0
    for manifest in manifests:
        until_ms = manifest.stages[StageName("minutes")].applied_watermark_ms or 0  # None before the first batch
        ended = Counter({row: n for row, n in windows.items() if row[0].replace(tzinfo=UTC).timestamp() + 60 <= until_ms / 1000})
        assert ended - public(site.tables / "minutes", version=version_at(site, manifest, "minutes")) == Counter()
        proved += bool(ended)
    assert proved > 0


@pytest.mark.every_version
def test_a_consumer_is_never_ahead_in_an_unaligned_checkpoint(site: Site, events: Events) -> None:
    with Running(site.spark, three_stages(site, events, unaligned=True, retained=100), site.home) as running:
        for _ in range(3):
            events.add(50)
            running.until(lambda: len(ids(site, "copied")) == events.rows)
        manifests = [running.store.manifest(k) for k in running.store.ids()]
    assert not any(manifest.aligned for manifest in manifests)
    for manifest in (manifest for manifest in manifests if versions_with(manifest)):
        copied = ids(site, "copied", version_at(site, manifest, "copied"))
        again = ids(site, "again", version_at(site, manifest, "again"))
        assert again == copied[: len(again)]
        assert again == copied or "again" in manifest.behind
    channels = [files_by_batch(running.store, manifest, StageName("copied")) for manifest in manifests]
    both = [(batch, one[batch], other[batch]) for one, other in pairwise(channels) for batch in one.keys() & other.keys()]
    assert both
    assert all(files == the_same for _, files, the_same in both), "what is in flight is named again, and never written again"


def test_the_next_attempt_goes_on_in_place_and_computes_nothing_again(site: Site, events: Events) -> None:
    pipeline = three_stages(site, events)
    events.add(300)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        before = running.head()
    events.add(300)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, 601).count())
        after = running.head()
    assert after.work_directory == before.work_directory
    assert after.stages[StageName("copied")].query == before.stages[StageName("copied")].query
    assert running.status is not None
    assert {name: stage.rows_in for name, stage in running.status.stages.items()} == dict.fromkeys(after.stages, 300)
    assert {stage: entry for entry in running.store.history() for stage in entry.ended_inputs} == {}, "nothing has an end"
    assert {path.parents[2].name for path in site.home.glob("work/*/stages/*/log/_delta_log/*.crc")} == {"copied"}, (
        "others read it"
    )
    assert ids(site, "copied") == ids(site, "again") == list(range(601))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, 601)))


@bounded_at_night
def test_rows_staged_before_a_cancel_are_public_after_the_next_start(site: Site, events: Events) -> None:
    """The cancel takes no checkpoint. Rows after the last one are staged, and no stage reads them twice."""
    events.later(100)
    pipeline = three_stages(site, events, interval="1 hour")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(staged_by(running, events.furthest, events))
    assert ids(site, "copied") == []
    events.add(100)
    with Running(site.spark, three_stages(site, events), site.home) as running:
        goes_on_until_all_is_shown(site, running, events)


@bounded_at_night
def test_the_next_attempt_publishes_a_checkpoint_whose_attempt_died_before_the_publication(site: Site, events: Events) -> None:
    class Dies:
        def before(self, step: Step) -> None:
            pass

        def after(self, step: Step) -> None:
            if step is Step.MANIFEST_CREATE:
                raise RunCancelledError("Killed.")

    pipeline = three_stages(site, events, interval="1 hour")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(staged_by(running, events.furthest, events))
        with observed_by(Dies()):
            CheckpointRequests(running.files).ask(request_id("now"))
            assert isinstance(running.ends(), RunCancelledError)
    assert running.store.taken() == [1]
    assert ids(site, "copied") == ids(site, "again") == []
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.state is RunState.RUNNING)
        assert_shown(site, events)


def has_read(running: Running, rows: int) -> bool:
    """Returns True if the second stage has read this number of rows in this attempt."""
    stages = running.status.stages if running.status else {}
    return StageName("again") in stages and stages[StageName("again")].rows_in == rows


class Held:
    """Holds calls of a function until the test releases them. Records the pools of Spark's scheduler in which they run.

    Args:
        owner: The module whose function is held.
        name: The function.
        of: The first argument of the held calls. None: all calls are held.
    """

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str, of: str | None = None) -> None:
        self._context, self._call, self._of = site.spark.sparkContext, getattr(owner, name), of
        self.begun, self.let_go, self.pools = threading.Event(), threading.Event(), set[str | None]()
        monkeypatch.setattr(owner, name, self._wait)

    def _wait(self, *arguments: Any, **options: Any) -> Any:
        self.pools.add(self._context.getLocalProperty("spark.scheduler.pool"))
        if self._of in (None, arguments[0]):
            self.begun.set()
            self.let_go.wait()
        return self._call(*arguments, **options)


def copied_and_newest(site: Site, events: Events) -> Pipeline:
    """Declares an append and an upsert of the same rows."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)
    pipeline.stage(sink=DeltaSink(str(site.tables / "copied")), name="copied")(lambda events: events.select("id"))
    newest = DeltaSink(str(site.tables / "newest"), mode="upsert", keys=["key"], sequence_by="id")
    pipeline.stage(sink=newest, name="newest")(lambda events: events.selectExpr("id % 7 AS key", "id"))
    return pipeline


def test_checkpoints_complete_while_an_upsert_is_published_and_then_all_tables_show_one_cut(
    site: Site, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    upserts = Held(site, monkeypatch, publisher, "_commit", "newest")
    with Running(site.spark, copied_and_newest(site, events), site.home) as running:
        try:
            running.until(upserts.begun.is_set)
            for _ in range(2):
                events.add(10)
                running.until(lambda: len(ids(site, "copied")) == events.rows)
            assert len(running.store.ids()) > 2, "none goes before it is public"
            assert ids(site, "newest") == []
        finally:
            upserts.let_go.set()
        running.until(lambda: shown(site, "copied") == list(range(events.rows)))
        assert shown(site, "newest") == list(range(events.rows - 7, events.rows))
    assert upserts.pools == {"publications"}


def test_checkpoints_complete_and_are_published_while_a_savepoint_of_an_earlier_one_is_copied(
    site: Site, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, saved = Held(site, monkeypatch, exports, "export"), request_id("kept", Wanted.SAVEPOINT)
    with Running(site.spark, copied_and_newest(site, events), site.home) as running:
        requests = CheckpointRequests(running.files)
        try:
            running.until(lambda: running.status and running.status.state is RunState.RUNNING)
            requests.ask(saved)
            running.until(copies.begun.is_set)
            for _ in range(3):
                events.add(10)
                running.checkpointed()
                running.until(lambda: shown(site, "copied") == list(range(events.rows)))
            assert requests.answer_of(saved) is None
        finally:
            copies.let_go.set()
        running.until(lambda: requests.answer_of(saved))
        running.until(lambda: shown(site, "newest") == list(range(events.rows - 7, events.rows)))
    copied = requests.answer_of(saved)
    assert copied is not None
    assert copied.savepoint is not None
    assert verify(open_files(copied.savepoint)).checkpoint + 3 <= running.head().checkpoint
    assert ids(site, "copied") == list(range(events.rows))


def shown(site: Site, table: str) -> list[int]:
    """Returns the rows of one table for a reader of several tables; none while no checkpoint is public in all of them."""
    try:
        _, version = consistent_versions(str(site.home))[SinkName(table)]
    except RejectedError:
        return []
    return ids(site, table, version)


def waiting_rows(site: Site, running: Running) -> int:
    """Returns the number of rows for the second table in complete checkpoints that it lacks, if a publication is blocked."""
    if running.status is None or running.status.blocked is None:
        return 0
    public = delta_logs.newest(site.tables / "again", "txn")["version"]
    return sum(running.store.manifest(k).sinks[AGAIN].actions.rows for k in running.store.ids() if k > public)


def test_a_violated_constraint_blocks_publication_over_a_restart_and_later_each_row_is_public_once(
    site: Site, events: Events
) -> None:
    before, table = events.rows, f"delta.`{site.tables / 'again'}`"
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.home) as running:
        running.until(lambda: has_read(running, events.rows))
        CheckpointRequests(running.files).ask(request_id("first"))
        running.until(lambda: len(ids(site, "again")) == before)
        events.add(50)
        running.until(lambda: has_read(running, events.rows))
        site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < {before})")
        CheckpointRequests(running.files).ask(request_id("second"))
        running.until(lambda: waiting_rows(site, running) == 50)
        assert ids(site, "again") == list(range(before))
    with Running(site.spark, three_stages(site, events), site.home) as running:
        running.until(lambda: running.status and running.status.state is RunState.RUNNING)
        running.until(lambda: running.status and running.status.blocked)
        assert running.status
        assert running.status.blocked
        assert running.status.blocked.error.evidence["sink"] == AGAIN
        assert ids(site, "again") == list(range(before))
        site.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT small")
        goes_on_until_all_is_shown(site, running, events)
        running.until(lambda: running.status and running.status.blocked is None)


SINKS: dict[str, dict[str, Any]] = {
    "append": {},
    "held": {"hold": Hold(time="1 hour")},
    "upsert": {"mode": "upsert", "keys": ["id"]},
}


def two_tables(site: Site, events: Events, sink: dict[str, Any]) -> Pipeline:
    """Declares two tables with the same rows, by default settings except the interval. The second one has other options."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "again"), **sink))
    def again(copied: DataFrame) -> DataFrame:
        return copied.select("id")

    return pipeline


def rows_wait(site: Site, running: Running, events: Events, *, alone: bool) -> None:
    """Adds rows until the second table is blocked, then others. Waits until they are staged and wait, too.

    The other table waits with it, unless the sink has a hold. If the table refuses only at its commit, the first of the rows are in the
    other table already.
    """
    events.add(50)
    running.until(lambda: running.status and running.status.blocked)
    events.add(50)
    waiting = {AGAIN} if alone else {AGAIN, SinkName("copied")}
    running.until(lambda: running.status and running.status.blocked and set(running.status.blocked.waiting) == waiting)
    running.until(lambda: waiting_rows(site, running) == events.rows - len(ids(site, "again")))
    assert running.status
    assert {(stage.state, stage.restarts) for stage in running.status.stages.values()} == {(StageState.RUNNING, 0)}


# test_a_violated_constraint_blocks_publication_over_a_restart_and_later_each_row_is_public_once runs by day.
@pytest.mark.nightly
@pytest.mark.parametrize("sink", SINKS)
def test_rows_that_violate_a_constraint_of_their_table_are_staged_and_wait_until_it_is_dropped(
    site: Site, events: Events, sink: str
) -> None:
    pipeline, alone = two_tables(site, events, SINKS[sink]), sink == "held"
    first, table = events.rows, f"delta.`{site.tables / 'again'}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG) USING delta TBLPROPERTIES ('delta.constraints.small' = 'id < {first}')")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: ids(site, "again") == list(range(first)))
        rows_wait(site, running, events, alone=alone)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.blocked)
        assert ids(site, "again") == list(range(first))
        events.add(50)
        site.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT small")
        second = events.rows
        running.until(lambda: ids(site, "again") == list(range(second)))
        site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT odd CHECK (id < {second})")
        rows_wait(site, running, events, alone=alone)
        assert ids(site, "again") == list(range(second))
        site.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT odd")
        running.until(lambda: len(ids(site, "again")) == len(ids(site, "copied")) == events.rows)
        running.until(lambda: running.status and running.status.blocked is None)
    expected = answer(site.spark.read.format("delta").load(str(events.path)).select("id"))
    assert public(site.tables / "again") == public(site.tables / "copied") == expected


def test_a_table_with_a_hold_waits_alone_and_gets_each_row_once(site: Site, events: Events) -> None:
    before, table = events.rows, f"delta.`{site.tables / 'again'}`"
    pipeline = three_stages(site, events, interval="1 hour", hold=Hold(time="1 hour"))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: has_read(running, events.rows))
        CheckpointRequests(running.files).ask(request_id("first"))
        running.until(lambda: len(ids(site, "again")) == before)
        events.add(50)
        running.until(lambda: has_read(running, events.rows))
        site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < {before})")
        CheckpointRequests(running.files).ask(request_id("second"))
        running.until(lambda: len(ids(site, "copied")) == events.rows)
        running.until(lambda: running.status and running.status.blocked and running.status.blocked.waiting == (AGAIN,))
        assert running.status
        assert running.status.blocked
        assert running.status.blocked.all_wait_from
        CheckpointRequests(running.files).ask(request_id("third"))
        running.until(lambda: consistent_versions(running.store.home).behind == (AGAIN,))
        assert running.head().held == (AGAIN,)
        assert ids(site, "again") == list(range(before))
        site.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT small")
        running.until(lambda: running.status and running.status.blocked is None)
        assert ids(site, "again") == list(range(events.rows))
        assert consistent_versions(running.store.home).behind == ()


def failing(site: Site, events: Events, switch: Path, restart: RestartStrategy, **options: Any) -> Pipeline:
    """Declares two stages. The second one fails while ``switch`` exists."""
    options = {"checkpoint": CheckpointSettings(interval="1 second")} | options
    pipeline = Pipeline("failing", restart=restart, **options)
    events.source(pipeline)
    there = str(switch)

    def fails(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        if Path(there).exists():
            raise ConnectionError("the switch is there")
        return number

    @pipeline.stage(sink=DeltaSink(str(site.tables / "steady")))
    def steady(events: DataFrame) -> DataFrame:
        return events.select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "shaky")))
    def shaky(steady: DataFrame) -> DataFrame:
        return steady.select(F.udf(fails, "long", useArrow=False)("id").alias("id"))

    return pipeline


@pytest.mark.parametrize("failures", [3, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_stage_that_fails_starts_again_alone_while_the_others_go_on(
    site: Site, events: Events, tmp_path: Path, failures: int
) -> None:
    switch = tmp_path / "switch"
    restart = RestartStrategy.fixed_delay(attempts=1000, delay="100 milliseconds")
    with Running(site.spark, failing(site, events, switch, restart), site.home) as running:
        running.until(lambda: len(ids(site, "shaky")) == events.rows)
        before = query_runs(site)
        switch.touch()
        for _ in range(failures):  # by the second time a checkpoint waits for the stage that fails
            events.add(50)
            running.until(staged_by(running, "steady", events))
            running.until(restarted_once_more(running, "shaky"))
        switch.unlink()
        running.until(lambda: len(ids(site, "shaky")) == events.rows)
        after = query_runs(site)
    assert ids(site, "steady") == ids(site, "shaky") == list(range(1 + failures * 50))
    assert after["steady"] == before["steady"]
    assert after["shaky"] != before["shaky"]
    assert running.status is not None
    restarts = {name: stage.restarts for name, stage in running.status.stages.items()}
    assert restarts.pop(StageName("shaky")) >= failures
    assert restarts == {StageName("steady"): 0}
    assert Attempts(running.files).numbers() == [1]


def query_runs(site: Site) -> dict[str, str]:
    """Returns Spark's id of the present run of each active query, by stage."""
    active: Any = site.spark._jsparkSession.sharedState().activeStreamingQueries()
    return {str(query.name()).rpartition(".")[2]: str(query.runId()) for query in active.values()}


def restarted_once_more(running: Running, stage: str) -> Callable[[], bool]:
    def restarts() -> int:
        return running.status.stages[StageName(stage)].restarts if running.status else 0

    before = restarts()
    return lambda: restarts() > before


@bounded_at_night
def test_an_exhausted_restart_strategy_ends_the_attempt_and_names_the_error_of_the_stage(
    site: Site, events: Events, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    switch.touch()
    events.end()
    with Running(
        site.spark, failing(site, events, switch, RestartStrategy.none(), on_stage_failure="fail"), site.home
    ) as running:
        error = running.ends()
    assert isinstance(error, RestartsExhaustedError)
    assert "The restart strategy is none. The last failure was InterruptedRunError:" in error.failed
    assert "ConnectionError: the switch is there" in error.failed
    attempt = Attempts(running.files).latest()
    assert attempt is not None
    assert attempt.restart == NoRestart()


RESTORED = re.compile(r"stage (\w+) is restored from .*: (\d+) files .* from a local copy, (\d+) files .* from the home")


def restored(log: pytest.LogCaptureFixture) -> dict[str, tuple[bool, bool]]:
    """Returns for each restored stage: whether some of its files came from a local copy, and whether some came from the home."""
    found = (RESTORED.fullmatch(message) for message in log.messages)
    return {each[1]: (each[2] != "0", each[3] != "0") for each in found if each}


def other_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates that the host goes down and comes up again."""
    monkeypatch.setattr(attempt, "boot_id", lambda: "another boot")


@pytest.mark.parametrize("unaligned", [pytest.param(False, marks=pytest.mark.nightly), True])
@bounded_at_night
def test_a_pipeline_goes_on_from_its_checkpoint_after_its_host_went_down(
    site: Site, events: Events, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unaligned: bool
) -> None:
    """Files that Spark wrote last may be gone or torn then. Here all files after the checkpoint are torn, and the others are reused."""
    events.add(150)
    events.later(100, 50)
    pipeline = three_stages(site, events, unaligned=unaligned)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, events.furthest)) == events.rows)
        events.add(100)
        running.until(staged_by(running, "copied", events))
    for torn in site.home.glob("work/*/stages/*/checkpoint/**/*"):
        if torn.is_file() and torn.name.isdigit():
            half = torn.read_bytes()[:10]
            torn.unlink()  # the checkpoint has pinned the same file under another name, and made it durable
            torn.write_bytes(half)
    events.add(50)
    other_boot(monkeypatch)
    with caplog.at_level(logging.INFO, restore.__name__), Running(site.spark, pipeline, site.home) as running:
        goes_on_until_all_is_shown(site, running, events)
    whole = dict.fromkeys(("copied", "again", "minutes"), (True, True))
    not_begun = dict.fromkeys(("again", "minutes"), (False, False))
    assert restored(caplog) == (whole | not_begun if events.bounded else whole)
    assert sum(path.is_dir() for path in site.home.glob("work/*")) == 1, "the work directory that was left is deleted"


@pytest.mark.nightly
@bounded_too
def test_a_work_directory_that_is_gone_is_built_from_the_checkpoint(site: Site, events: Events) -> None:
    """The test restores the first checkpoint. The next test restores a checkpoint after many."""
    events.add(150)
    events.later(50)
    pipeline = three_stages(site, events)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, events.furthest)) == events.rows)
    lose(site.home / "work")
    events.add(50)
    with Running(site.spark, pipeline, site.home) as running:
        goes_on_until_all_is_shown(site, running, events)


def test_old_checkpoints_are_deleted_with_their_state_and_the_newest_is_enough_to_go_on(
    site: Site, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = three_stages(site, events)
    with Running(site.spark, pipeline, site.home) as running:
        for _ in range(5):
            events.add(60)
            running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, events.rows).count())
        running.until(lambda: len(running.store.ids()) <= 5)
    assert running.head().checkpoint > 5
    named = {file.stored for k in running.store.ids() for cut in running.store.manifest(k).stages.values() for file in cut.files}
    stored = {str(path.relative_to(site.home)) for path in (site.home / "state").rglob("*") if path.is_file()}
    assert named == stored
    lose(site.home / "work")
    events.add(60)
    with caplog.at_level(logging.INFO, restore.__name__), Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, events.rows).count())
    assert restored(caplog) == dict.fromkeys(("copied", "again", "minutes"), (False, True))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, events.rows)))


@pytest.mark.nightly
def test_a_pipeline_without_rows_takes_no_checkpoints_and_still_notices_a_later_attempt(site: Site, events: Events) -> None:
    pipeline, frames = three_stages(site, events), []

    @pipeline.stage(sink=DeltaSink(str(site.tables / "looking")))
    def looking(copied: DataFrame) -> DataFrame:
        frames.append(copied)
        return copied.select("id")

    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == events.rows)
        running.until(running.is_quiet)
        running_frame = frames[-1]  # the first one was only planned
        delay = running_frame.sparkSession.conf.get("spark.sql.streaming.pollingDelay")
        assert delay == "100ms", "Spark would look a hundred times a second"
        attempts = Attempts(running.files)
        mine = attempts.latest()
        assert mine is not None
        attempts.create(mine.model_copy(update={"attempt": AttemptNumber(mine.attempt + 1)}))
        assert isinstance(running.ends(), FencedError)


def test_other_tables_are_published_without_a_failed_stage_and_the_next_start_continues_the_stage(
    site: Site, events: Events, tmp_path: Path
) -> None:
    """With unaligned checkpoints, no checkpoint waits for the rows before the stage."""
    switch, unaligned = tmp_path / "switch", CheckpointSettings(interval="1 second", unaligned=True)
    pipeline = failing(site, events, switch, RestartStrategy.none(), checkpoint=unaligned)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "shaky")) == events.rows)
        before = events.rows
        switch.touch()
        for _ in range(2):
            events.add(50)
            running.until(lambda: len(ids(site, "steady")) == events.rows)
        running.until(lambda: running.status and running.status.stages[StageName("shaky")].reason)
        assert running.status is not None
        shaky = running.status.stages[StageName("shaky")]
        assert (shaky.state, "the switch is there" in str(shaky.reason)) == (StageState.FAILED, True)
        CheckpointRequests(running.files).ask(request_id("now", Wanted.STOP))
        running.stopped()
    assert len(ids(site, "shaky")) == before
    switch.unlink()
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "shaky")) == events.rows)
    assert sorted(ids(site, "shaky")) == sorted(ids(site, "steady"))
