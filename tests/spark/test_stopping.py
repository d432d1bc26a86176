"""A running pipeline is stopped with a savepoint, or drained. It goes on afterwards or is refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, RunState, StageState
from spark_jobs.protocol.errors import IncompleteError, InterruptedRunError, RejectedError, RunCancelledError, StorageError
from spark_jobs.protocol.ids import RequestId, StageName
from spark_jobs.protocol.states import StopState
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.checkpoints import exports
from spark_jobs.storage.files import create_document
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site, bounded_or_in_a_store_at_night
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.command_line import document, spark_jobs
from tests.support.crashes import HOUSEKEEPING, Watched
from tests.support.growing_table import Events, bounded_at_night, bounded_too, events_of
from tests.support.live_pipeline import DELAY_S
from tests.support.places import in_a_store_at_night
from tests.support.reminders import Reminders
from tests.support.running import Running
from tests.support.running_minutes import assert_shown, goes_on_until_all_is_shown, ids, three_stages
from tests.support.stop_steps import DRAIN_STEPS, STOP_STEPS

pytestmark = pytest.mark.spark


@pytest.fixture
def events(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = events_of(request, tmp_path / "events", monkeypatch)
    made.add(200)
    return made


def cascade(site: Site, events: Events) -> Pipeline:
    """Declares counts per minute, and counts of those per hour. Only a drain of one stage after the other releases both."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(site.table("copied"), publish="every_checkpoint"))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(site.table("minutes"), publish="every_checkpoint"))
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.window_time("minute").alias("at"), "events")

    @pipeline.stage(sink=DeltaSink(site.table("hours"), publish="every_checkpoint"))
    def hours(minutes: DataFrame) -> DataFrame:
        counts = minutes.groupBy(F.window("at", "1 hour").alias("hour")).agg(F.sum("events").alias("events"))
        return counts.select(F.col("hour.start").alias("hour"), "events")

    return pipeline


def all_hours(site: Site, rows: int) -> DataFrame:
    at = site.spark.range(rows).select(F.timestamp_seconds("id").alias("at"))
    counts = at.groupBy(F.window("at", "1 hour").alias("hour")).agg(F.count("*").alias("events"))
    return counts.select(F.col("hour.start").alias("hour"), "events")


def assert_drained(site: Site, events: Events) -> None:
    """Checks that the tables of the cascade show all input rows so far, and all of their results.

    A planned batch is drained, too: with a bounded input, this is the batch of its next rows.
    """
    read = len(ids(site, "copied"))
    assert ids(site, "copied") == list(range(read))
    assert events.rows <= read <= events.rows + events.next_rows
    assert_same(public(site.table("hours")), answer(all_hours(site, read)))


def stop(site: Site, *options: object) -> Any:
    return document(spark_jobs("stop", "--home", site.place, "--output", "json", *options))


def has_staged(running: Running, stage: str, rows: int) -> Callable[[], object]:
    return lambda: running.status and running.status.stages[stage].rows_in >= rows  # type: ignore[index]


def has_closed_windows(running: Running, events: Events) -> Callable[[], object]:
    """Returns a function that tells whether the watermark has closed the last windows.

    They become rows in the next batch. Windows of a bounded pipeline wait for its end.
    """
    newest_ms = (events.rows - 1 - DELAY_S) * 1000
    return lambda: events.bounded or (running.status and running.status.stages[StageName("minutes")].watermark_ms == newest_ms)


def answered(running: Running, request: RequestId) -> CheckpointResponse:
    requests = CheckpointRequests(running.files)
    running.until(lambda: requests.answer_of(request))
    found = requests.answer_of(request)
    assert found is not None
    return found


def steps_from(watched: Watched, first: Step) -> set[Step]:
    """Returns the steps that were passed from ``first`` on."""
    passed = [point.step for point in watched.points]
    return set(passed[passed.index(first) :])


@contextmanager
def log_of(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Yields a function that returns Spark's log output within the context."""
    jvm: Any = spark._jvm
    text, log4j = jvm.java.io.StringWriter(), jvm.org.apache.logging.log4j
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, text, "test", False, True)
    appender.start()
    root = log4j.LogManager.getRootLogger()
    root.addAppender(appender)
    try:
        yield lambda: str(text.toString())
    finally:
        root.removeAppender(appender)


def test_a_batch_that_a_stop_refuses_is_no_error_in_sparks_log(site: Site, events: Events) -> None:
    over = Event()

    def rows_go_on() -> None:
        while not over.wait(0.1):
            events.add(1)

    writer = Thread(target=rows_go_on)
    with log_of(site.spark) as log, Running(site.spark, three_stages(site, events, interval="1 hour"), site.place) as running:
        running.until(has_staged(running, "again", events.rows))
        writer.start()
        stop(site)
        running.stopped()
        over.set()
        writer.join()
    assert "TurnedAwayError" not in log()
    log4j = site.spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    assert str(log4j.LogManager.getLogger("org.apache.spark.sql.execution.streaming").getLevel()) == "ERROR", "as before"


@bounded_or_in_a_store_at_night
def test_a_pipeline_that_was_stopped_goes_on_as_if_nothing_had_happened(site: Site, events: Events) -> None:
    events.later(300)
    pipeline = three_stages(site, events, interval="1 hour")
    watched = Watched()
    with Running(site.spark, pipeline, site.place, run="first") as running, observed_by(watched):
        running.until(has_staged(running, events.furthest, events.rows))
        running.until(has_closed_windows(running, events))
        stopped = stop(site, "--request", "now")
        ended = running.stopped()
    housekeeping = HOUSEKEEPING if events.bounded else set()  # the stages behind have read no rows yet
    assert steps_from(watched, Step.PIN_STATE) | housekeeping == set(STOP_STEPS) | housekeeping
    manifest = running.head()
    assert (manifest.checkpoint_kind, manifest.aligned, manifest.drained) == (CheckpointKind.STOP, True, False)
    assert ended.checkpoint == stopped["checkpoint"] == manifest.checkpoint == 1
    assert stopped["savepoint"] == f"{running.files.url}/savepoints/stop-now"
    assert_shown(site, events)
    assert running.status is not None
    assert (running.status.state, running.status.stop and running.status.stop.state) == (RunState.DONE, StopState.STOPPED)
    assert {stage.state for stage in running.status.stages.values()} == {StageState.QUIESCED}

    with Running(site.spark, pipeline, site.place, run="first") as repeated:
        assert repeated.stopped().checkpoint == 1, "its own stop is the answer of a run for ever"
    events.add(300)
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, events.furthest, 300))
        running.until(has_closed_windows(running, events))
        assert stop(site)["checkpoint"] == 2
        running.stopped()
    assert_shown(site, events)
    if events.bounded:
        with Running(site.spark, pipeline, site.place) as running:
            goes_on_until_all_is_shown(site, running, events)
        assert running.head().round == 1


@in_a_store_at_night
@pytest.mark.every_version
@bounded_too
def test_a_drain_flushes_one_stage_into_the_next_and_takes_one_checkpoint(site: Site, events: Events) -> None:
    pipeline = cascade(site, events)
    watched = Watched()
    with Running(site.spark, pipeline, site.place) as running, observed_by(watched):
        running.until(has_staged(running, "copied", events.rows))
        drained = stop(site, "--drain")
        running.stopped()
    assert steps_from(watched, Step.DRAIN_BEGIN) == set(DRAIN_STEPS)
    assert (running.store.taken(), running.head().drained, drained["drained"]) == ([1], True, True)
    assert_drained(site, events)
    stages = running.head().stages
    assert all(cut.drained for cut in stages.values())
    newest_minute_ms = (len(ids(site, "copied")) - 1) // 60 * 60_000 + 59_999
    assert stages[StageName("hours")].watermark_before_drain_ms == newest_minute_ms - DELAY_S * 1000, "it has read these rows"
    with Running(site.spark, pipeline, site.place) as again:
        assert isinstance(again.ends(), RejectedError)
    assert "drained" in spark_jobs("status", "--home", site.place).stdout


@bounded_or_in_a_store_at_night
def test_one_of_two_stops_wins_and_the_other_gets_an_error(site: Site, events: Events) -> None:
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.place) as running:
        running.until(has_staged(running, events.furthest, events.rows))
        requests = CheckpointRequests(running.files)
        asked = [request_id(name, wanted) for name, wanted in (("a", Wanted.STOP), ("b", Wanted.STOP), ("c", Wanted.CHECKPOINT))]
        threads = [Thread(target=requests.ask, args=(request,)) for request in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.stopped()
    answers = {request: requests.answer_of(request) for request in asked}
    lost = [answer.error for answer in answers.values() if answer and answer.error]
    won = [request for request, answer in answers.items() if answer and answer.savepoint]
    assert all(answers.values())
    assert len(won) == 1
    assert {error.evidence["winner"] for error in lost} == set(won)
    assert {error.error for error in lost} <= {"ConflictError", "RejectedError"}
    assert running.store.taken() == [1]


@bounded_at_night
def test_a_stop_that_is_requested_after_another_was_answered_is_refused_and_stops_no_later_attempt(
    site: Site, events: Events
) -> None:
    events.later(100)
    pipeline = three_stages(site, events, interval="1 hour")
    first, late, later = (request_id(name, Wanted.STOP) for name in ("first", "late", "later"))

    class AsksLate:
        def before(self, step: Step) -> None:
            requests = CheckpointRequests(running.files)
            is_stopped = requests.answer_of(first) is not None  # so this must be the answer to the start
            if step is Step.RESPONSE_CREATE and is_stopped and requests.answer_of(late) is None and not requests.open():
                create_document(running.files, f"requests/{late}.json", asked(late))

        def after(self, step: Step) -> None:
            pass

    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, events.furthest, events.rows))
        with observed_by(AsksLate()):
            CheckpointRequests(running.files).ask(first)
            running.stopped()
    assert CheckpointRequests(running.files).open() == ()
    create_document(running.files, f"requests/{later}.json", asked(later))  # by a client that has seen the driver at work
    events.add(100)
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, events.furthest, 100))
        for request in (late, later):
            refused = answered(running, request).error
            assert refused is not None
            assert (refused.error, refused.evidence["winner"]) == ("RejectedError", first)
        stop(site)
        running.stopped()
    assert ids(site, events.furthest) == list(range(301))


def asked(request: RequestId) -> CheckpointRequest:
    return CheckpointRequest(request=request, requested_at=datetime.now(UTC), wanted=Wanted.STOP)


@bounded_or_in_a_store_at_night
def test_an_impossible_stop_is_refused_and_the_pipeline_runs_on(site: Site, events: Events) -> None:
    events.later(100)
    taken = open_place(site.place_for("taken"))
    taken.create("something", b"else")
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.place) as running:
        running.until(has_staged(running, events.furthest, events.rows))
        request = request_id("a", Wanted.STOP)
        CheckpointRequests(running.files).ask(request, target=taken.url)
        refused = answered(running, request)
        assert refused.error is not None
        assert "is not empty" in refused.error.failed
        events.add(100)
        running.until(has_staged(running, events.furthest, events.rows))
        stop(site)
        running.stopped()
    assert_shown(site, events)
    assert taken.paths() == ["something"]


@pytest.mark.parametrize(
    ("drain", "run"),
    [
        (True, "first"),
        pytest.param(False, "second", marks=pytest.mark.nightly),
        pytest.param(False, "first", marks=pytest.mark.nightly),
        pytest.param(True, "second", marks=pytest.mark.nightly),
    ],
)
@bounded_or_in_a_store_at_night
def test_a_stop_that_was_interrupted_after_its_checkpoint_is_completed(
    site: Site, events: Events, monkeypatch: pytest.MonkeyPatch, run: str, *, drain: bool
) -> None:
    pipeline = cascade(site, events)

    def fails(*_: object, **__: object) -> None:
        raise StorageError("The disk is full.")

    request = request_id("a", Wanted.STOP)
    with Running(site.spark, pipeline, site.place, run="first") as running:
        running.until(has_staged(running, "copied", events.rows))
        with monkeypatch.context() as patch:
            patch.setattr(exports, "export", fails)
            CheckpointRequests(running.files).ask(request, drain=drain)
            error = running.ends()
        assert isinstance(error, IncompleteError)
        assert error.evidence["checkpoint"] == 1
    assert CheckpointRequests(running.files).answer_of(request) is None
    with Running(site.spark, pipeline, site.place, run=run) as again:
        found = answered(again, request)
        assert (found.checkpoint, found.drained, found.error) == (1, drain, None)
        assert found.savepoint is not None
        if run == "first":
            assert again.stopped().checkpoint == 1
        elif drain:
            assert isinstance(again.ends(), RejectedError)
    if drain:
        assert_drained(site, events)
    else:
        assert ids(site, "copied") == list(range(events.rows))


@bounded_or_in_a_store_at_night
def test_a_failed_drain_publishes_no_flushed_row_and_can_be_repeated(site: Site, events: Events) -> None:
    events.later(100, 100)
    pipeline = cascade(site, events)

    class Breaks:
        """Lets the disk fail when the second stage is flushed."""

        plans = 0

        def before(self, step: Step) -> None:
            if step is Step.PLAN_BATCH:
                self.plans += 1
                if self.plans == 2:
                    raise StorageError("The disk is away.")

        def after(self, step: Step) -> None:
            pass

    first, second = request_id("a", Wanted.STOP), request_id("b", Wanted.STOP)
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, "copied", events.rows))
        spark_jobs("checkpoint", "--home", site.place)
        events.add(100)
        running.until(has_staged(running, "copied", events.rows))
        with observed_by(Breaks()):
            CheckpointRequests(running.files).ask(first, drain=True)
            assert isinstance(running.ends(), InterruptedRunError)
    failed = CheckpointRequests(running.files).answer_of(first)
    assert failed is not None
    assert failed.error is not None
    assert public_count(site.table("hours")) in (None, 0)
    events.add(100)
    with Running(site.spark, pipeline, site.place) as again:
        again.until(has_staged(again, "copied", 200))
        CheckpointRequests(running.files).ask(second, drain=True)
        again.stopped()
    assert_drained(site, events)


@in_a_store_at_night
@pytest.mark.nightly
@bounded_too
def test_a_drain_has_to_be_requested_again_if_the_work_directory_was_lost_before_it_began(site: Site, events: Events) -> None:
    pipeline = cascade(site, events)
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, "copied", events.rows))
    lost = request_id("lost", Wanted.STOP)
    asked = CheckpointRequest(request=lost, requested_at=datetime.now(UTC), wanted=Wanted.STOP, drain=True)
    create_document(running.files, f"requests/{lost}.json", asked)
    site.lose_work()
    with Running(site.spark, pipeline, site.place) as again:
        refused = answered(again, lost)
        assert refused.error is not None
        assert "begins at the beginning" in refused.error.exists
        again.until(has_staged(again, "copied", events.rows))
        stop(site, "--drain")
        again.stopped()
    assert_drained(site, events)


@bounded_or_in_a_store_at_night
def test_the_next_attempt_completes_a_cancelled_drain(site: Site, events: Events) -> None:
    pipeline = cascade(site, events)

    class Dies:
        """Lets the process die when the second stage is flushed."""

        plans = 0

        def before(self, step: Step) -> None:
            if step is Step.PLAN_BATCH:
                self.plans += 1
                if self.plans == 2:
                    raise RunCancelledError("Killed.")

        def after(self, step: Step) -> None:
            pass

    request = request_id("a", Wanted.STOP)
    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, "copied", events.rows))
        with observed_by(Dies()):
            CheckpointRequests(running.files).ask(request, drain=True)
            assert isinstance(running.ends(), RunCancelledError)
    if not events.bounded:
        events.add(100)
        events.rows -= 100  # rows after the start of the drain stay in the source
    with Running(site.spark, pipeline, site.place) as again:
        again.stopped()
    assert_drained(site, events)
    found = CheckpointRequests(running.files).answer_of(request)
    assert found is not None
    assert (found.error, found.drained, found.checkpoint) == (None, True, 1)


def test_a_drain_whose_last_rows_violate_a_constraint_is_finished_by_the_next_start_once_it_is_dropped(
    site: Site, events: Events
) -> None:
    table = f"delta.`{site.table('hours')}`"
    few = "TBLPROPERTIES ('delta.constraints.few' = 'events < 10')"
    site.spark.sql(f"CREATE TABLE {table} (hour TIMESTAMP, events LONG) USING delta {few}")
    with Running(site.spark, cascade(site, events), site.place) as running:
        running.until(has_staged(running, "copied", events.rows))
        CheckpointRequests(running.files).ask(request_id(None, Wanted.STOP), drain=True)
        assert "1 rows break few (events < 10)" in str(running.ends())
    assert public_count(site.table("hours")) == 0
    site.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT few")
    with Running(site.spark, cascade(site, events), site.place) as running:
        assert "The pipeline was drained" in str(running.ends())
    assert_drained(site, events)


# test_a_drain_flushes_one_stage_into_the_next_and_takes_one_checkpoint flushes stages by day.
@pytest.mark.nightly
def test_a_join_of_two_stages_matches_rows_that_their_drain_flushes_to_both_sides(site: Site, events: Events) -> None:
    """A batch with these rows and the end of time would keep no row of one side for the other."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)

    def minutes(name: str, remainder: int) -> None:
        @pipeline.stage(name=name)
        def counted(events: DataFrame) -> DataFrame:
            counts = events.groupBy(F.window("at", "1 minute").alias("minute"))
            of_one_kind = counts.agg(F.count_if(F.col("id") % 2 == remainder).alias(name))
            return of_one_kind.select(F.window_time("minute").alias("at"), name)

    minutes("even", 0)
    minutes("odd", 1)

    @pipeline.stage
    def renamed(odd: DataFrame) -> DataFrame:
        return odd.withColumnRenamed("at", "odd_at")

    @pipeline.stage(sink=DeltaSink(site.table("both")))
    def both(even: DataFrame, renamed: DataFrame) -> DataFrame:
        return even.join(renamed, F.expr("odd_at = at")).select("at", "even", "odd")

    with Running(site.spark, pipeline, site.place) as running:
        for stage, rows in (("even", events.rows), ("odd", events.rows), ("both", 2)):
            running.until(has_staged(running, stage, rows))
        stop(site, "--drain")
        running.stopped()
    read = site.spark.range(events.rows).select("id", F.timestamp_seconds("id").alias("at"))
    counts = read.groupBy(F.window("at", "1 minute").alias("minute")).agg(
        F.count_if(F.col("id") % 2 == 0).alias("even"), F.count_if(F.col("id") % 2 == 1).alias("odd")
    )
    assert_same(public(site.table("both")), answer(counts.select(F.window_time("minute").alias("at"), "even", "odd")))
    drain_batches = {name: cut.drain_batches for name, cut in running.head().stages.items()}
    assert drain_batches == {"even": 1, "odd": 1, "renamed": 0, "both": 1}, "a stage without state has nothing to flush"


@pytest.mark.nightly
def test_a_drain_flushes_joins_and_timers_and_the_stages_behind_them(site: Site, events: Events, tmp_path: Path) -> None:
    """A window behind the join has rows without a partner. Only the drain of the join hands them on."""
    replies = str(tmp_path / "replies")
    numbers = pa.array(range(0, 201, 2), pa.int64())
    at = pa.array([(2 * each + 5) * 1_000_000 for each in range(101)], pa.timestamp("us", tz="UTC"))
    write_deltalake(replies, pa.table({"reply": numbers, "replied_at": at}))
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)

    @pipeline.source(bounded=False, event_time="replied_at", watermark_delay="10 seconds")
    def answers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(replies)

    @pipeline.stage(sink=DeltaSink(site.table("joined")), event_time="at", watermark_delay="10 minutes")
    def joined(events: DataFrame, answers: DataFrame) -> DataFrame:
        soon = F.expr("reply = id AND replied_at >= at AND replied_at <= at + INTERVAL 1 MINUTE")
        # Spark takes a row of 1970-01-01 00:00:00 as late: its first watermark is there
        return events.where("id > 0").join(answers, soon, "left_outer").select("id", "at", "reply")

    @pipeline.stage(sink=DeltaSink(site.table("minutes")))
    def minutes(joined: DataFrame) -> DataFrame:
        counts = joined.groupBy(F.window("at", "1 minute").alias("minute")).agg(
            F.count("*").alias("n"), F.count("reply").alias("of")
        )
        return counts.select(F.col("minute.start").alias("minute"), "n", "of")

    @pipeline.stage(sink=DeltaSink(site.table("reminders")))
    def reminders(joined: DataFrame) -> DataFrame:
        teams = joined.select((F.col("id") % 3).alias("team"), "at").groupBy("team")
        return teams.transformWithStateInPandas(Reminders(), "team long, due long, n long", "append", "EventTime")

    with Running(site.spark, pipeline, site.place) as running:
        running.until(has_staged(running, "joined", events.rows - 1 + len(numbers)))
        stop(site, "--drain")
        running.stopped()
    assert running.store.taken() == [1]
    rows = site.spark.range(1, events.rows).select("id", F.timestamp_seconds("id").alias("at"))
    found = rows.withColumn("reply", F.when(F.col("id") % 2 == 0, F.col("id")))
    assert_same(public(site.table("joined")), answer(found))
    windows = found.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("n"), F.count("reply").alias("of"))
    assert_same(public(site.table("minutes")), answer(windows.select(F.col("minute.start").alias("minute"), "n", "of")))
    teams = found.groupBy((F.col("id") % 3).alias("team")).agg(((F.max("id") + 60) * 1000).alias("due"), F.count("*").alias("n"))
    assert_same(public(site.table("reminders"), ["team", "due", "n"]), answer(teams))
