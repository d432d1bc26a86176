"""Inputs that end, together with inputs that do not. An ended input holds no row back and is not read again (F1 to F7)."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, RestoreFrom, StageState
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.inputs.kafka_source import partition_offsets
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.command_line import spark_jobs
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.live_pipeline import Events
from tests.support.reminders import Reminders
from tests.support.running import Running, lose
from tests.support.running_minutes import ids
from tests.support.stopped_pipelines import refused
from tests.support.systems import Crashed

pytestmark = pytest.mark.spark

Build = Callable[[Site, Events, Events], Pipeline]
LIVE_FROM = 1_000
"""The first number of the live rows. The history has the numbers before it."""
KEPT = StageName("kept")
PATIENCE_S = 120
TOPIC = "ends-one-by-one"
PARTITIONS = [range(600), range(600, 603), range(603, LIVE_FROM)]
"""The numbers in each partition of the topic."""


@pytest.fixture
def history(tmp_path: Path) -> Events:
    found = Events(tmp_path / "history")
    for _ in range(4):
        found.add(LIVE_FROM // 4)
    return found


@pytest.fixture
def live(tmp_path: Path) -> Events:
    found = Events(tmp_path / "live")
    found.rows = LIVE_FROM
    found.add(1)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all queries started so far."""
    names: list[str] = []
    named = DataStreamWriter.queryName

    def told(self: DataStreamWriter, name: str) -> DataStreamWriter:
        names.append(name)
        return named(self, name)

    monkeypatch.setattr(DataStreamWriter, "queryName", told)
    return names


def sources(pipeline: Pipeline, history: Events, live: Events) -> None:
    before, now = str(history.path), str(live.path)

    @pipeline.source(bounded=True, event_time="at", watermark_delay="10 seconds")
    def past(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(before)

    @pipeline.source(bounded=False, event_time="at", watermark_delay="10 seconds")
    def present(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(now)


def minutes_of(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"), F.sum("id").alias("ids"))
    return counts.select(F.col("minute.start").alias("minute"), "events", "ids")


def in_one_stage(site: Site, history: Events, live: Events) -> Pipeline:
    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval="1 second"))
    sources(pipeline, history, live)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(past: DataFrame, present: DataFrame) -> DataFrame:
        return minutes_of(past.union(present))

    return pipeline


def in_a_stage_of_its_own(site: Site, history: Events, live: Events) -> Pipeline:
    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval="1 second"))
    sources(pipeline, history, live)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "cleaned")))
    def cleaned(past: DataFrame) -> DataFrame:
        return past.where("id >= 0")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(cleaned: DataFrame, present: DataFrame) -> DataFrame:
        return minutes_of(cleaned.union(present))

    return pipeline


def beside_timers(site: Site, history: Events, live: Events) -> Pipeline:
    """Declares the same pipeline with one more stage that ends. It has timers, and its logs do not tell whether one is left."""
    pipeline = in_a_stage_of_its_own(site, history, live)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "reminders")))
    def reminders(past: DataFrame) -> DataFrame:
        teams = past.select((F.col("id") % 3).alias("team"), "at").groupBy("team")
        return teams.transformWithStateInPandas(Reminders(), "team long, due long, n long", "append", "EventTime")

    return pipeline


def that_waits(site: Site, history: Events, live: Events, held: Path, interval: str = "1 second") -> Pipeline:
    """Declares the same pipeline. Its second batch of the history does not end while the file ``held`` exists."""

    def waits(number: int) -> int:
        while number >= LIVE_FROM // 4 and held.exists():
            held.with_name("waits").touch()
            time.sleep(0.02)
        return number

    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval=interval))
    sources(pipeline, history, live)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "cleaned")))
    def cleaned(past: DataFrame) -> DataFrame:
        return past.withColumn("id", F.udf(waits, "long", useArrow=False)("id"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(cleaned: DataFrame, present: DataFrame) -> DataFrame:
        return minutes_of(cleaned.union(present))

    return pipeline


def stop_in_the_middle(site: Site, history: Events, live: Events, held: Path, *, drain: bool) -> tuple[Running, range]:
    """Stops the pipeline during the history's second batch. Returns the numbers of the history that were read by then."""
    held.touch()
    # no periodic checkpoint: the stop takes the only one
    pipeline = that_waits(site, history, live, held, interval="1 hour")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(held.with_name("waits").exists)
        request = request_id("now", Wanted.STOP)
        CheckpointRequests(running.files).ask(request, drain=drain)
        running.until(lambda: running.status and running.status.stop)
        held.unlink()
        running.stopped()
    found = CheckpointRequests(running.files).answer_of(request)
    assert found is not None
    assert (found.error, found.drained) == (None, drain)
    manifest = running.head()
    assert (manifest.checkpoint_kind, manifest.stages[StageName("cleaned")].finished) == (CheckpointKind.STOP, drain)
    read = range(len(ids(site, "cleaned")))
    assert LIVE_FROM // 4 < len(read) < LIVE_FROM
    assert ids(site, "cleaned") == list(read)
    return running, read


def with_a_stage(site: Site, history: Events, live: Events, *, before: bool) -> Pipeline:
    """Declares the same pipeline with one more stage, before or behind the stage that ends."""
    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval="1 second"))
    sources(pipeline, history, live)
    own = DeltaSink(str(site.tables / "cleaned"))
    if before:
        pipeline.stage(name="first")(lambda past: past.where("id >= 0"))
        pipeline.stage(name="cleaned", sink=own)(lambda first: first.where("id >= 0"))
    else:
        pipeline.stage(name="cleaned", sink=own)(lambda past: past.where("id >= 0"))
        pipeline.stage(name="behind", sink=DeltaSink(str(site.tables / "behind")))(lambda cleaned: cleaned)
    minutes = DeltaSink(str(site.tables / "minutes"))
    pipeline.stage(name="minutes", sink=minutes)(lambda cleaned, present: minutes_of(cleaned.union(present)))
    return pipeline


def of_a_topic(site: Site, kafka: KafkaBroker, live: Events, per_batch: int) -> Pipeline:
    """Declares one stage that reads a topic, whose partitions end at different offsets, and the live rows."""
    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval="1 second"))
    options, now = kafka_options(kafka, TOPIC, maxOffsetsPerTrigger=per_batch), str(live.path)

    @pipeline.source(bounded=True, event_time="at")
    def past(spark: SparkSession) -> DataFrame:
        number = F.col("value").cast("string").cast("long")
        records = spark.readStream.format("kafka").options(**options).load()
        return records.select(number.alias("id"), F.timestamp_seconds(number).alias("at"))

    @pipeline.source(bounded=False, event_time="at", watermark_delay="10 seconds")
    def present(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(now)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(past: DataFrame, present: DataFrame) -> DataFrame:
        return minutes_of(past.union(present))

    return pipeline


def all_minutes(site: Site, ids: list[int]) -> DataFrame:
    """Returns every window of the rows with these numbers, from a batch query over them."""
    return minutes_of(
        site.spark.createDataFrame([(each,) for each in ids], "id long").select("id", F.timestamp_seconds("id").alias("at"))
    )


def closed_minutes(site: Site, upto: int) -> DataFrame:
    """Returns the windows that the watermark has passed after row number ``upto``, from a batch query over all rows."""
    rows = site.spark.range(upto).select("id", F.timestamp_seconds("id").alias("at"))
    closed = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"), F.sum("id").alias("ids"))
    passed = closed.where(F.col("minute.end") <= F.timestamp_seconds(F.lit(upto - 1 - 10)))
    return passed.select(F.col("minute.start").alias("minute"), "events", "ids")


def is_public(site: Site, rows: int) -> bool:
    """Returns True if all windows are public that the watermark has passed by then."""
    return public_count(site.tables / "minutes") == (rows - 1 - 10) // 60


@pytest.mark.nightly
@pytest.mark.parametrize("build", [in_one_stage, in_a_stage_of_its_own])
def test_the_watermark_moves_on_once_an_input_has_ended(site: Site, history: Events, live: Events, build: Build) -> None:
    with Running(site.spark, build(site, history, live), site.home) as running:
        for _ in range(2):
            live.add(150)
            running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.nightly
@pytest.mark.parametrize(("build", "ended"), [(in_one_stage, "past"), (beside_timers, "cleaned")])
def test_an_ended_input_is_not_read_again_by_the_next_attempt(
    site: Site, history: Events, live: Events, started: list[str], build: Build, ended: str
) -> None:
    """The watermark moves on in each attempt, too. The test above shows this for one attempt."""
    pipeline = build(site, history, live)
    with Running(site.spark, pipeline, site.home) as running:
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
        running.until(lambda: all(cut.finished for name, cut in running.head().stages.items() if name != "minutes"))
        before = running.head()
    assert running.store.history()[-1].ended_inputs == {"minutes": (ended,)}
    assert len(set(started)) == len(before.stages)
    finished = before.stages.keys() - {"minutes"}
    started.clear()
    history.add(500)  # after the recorded end: no round of this pipeline reads these rows
    live.add(150)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: is_public(site, live.rows))
        running.until(lambda: running.status and all(running.status.stages[name].state is StageState.ENDED for name in finished))
        after = running.head()
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))
    assert running.status is not None
    rows_in = {name: stage.rows_in for name, stage in running.status.stages.items()}
    starts = started.count("seam.minutes") + 1  # and a batch that was planned and not run when the attempt before ended
    assert 150 <= rows_in.pop(StageName("minutes")) <= 150 + starts, "at each start what stands in for an ended input has a row"
    assert rows_in == dict.fromkeys(finished, 0)
    assert set(started) == {"seam.minutes"}, "a finished stage has no query"
    batches = {name: (before.stages[name].batch, after.stages[name].batch) for name in rows_in}
    assert all(old == new for old, new in batches.values()), f"a finished stage goes on: {batches}"


@pytest.mark.nightly
def test_an_end_that_is_noticed_after_the_checkpoint_of_the_last_batch_is_in_the_next_checkpoint(
    site: Site, history: Events, live: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other stage reads this one: after its last batch, its end is the only event."""
    pipeline = in_one_stage(site, history, live)
    pipeline.stage(name=KEPT, sink=DeltaSink(str(site.tables / KEPT)))(lambda past: past)
    is_seen, to_its_end = Event(), RoundRun.to_its_end

    def late(run: RoundRun, stage: StageRun) -> None:
        ended = stage.output.ended

        def once_seen() -> None:
            is_seen.wait(PATIENCE_S)
            Event.set(ended)

        monkeypatch.setattr(ended, "set", once_seen)
        to_its_end(run, stage)

    monkeypatch.setattr(RoundRun, "to_its_end", late)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.stages[KEPT].state is StageState.ENDED)
        running.until(running.is_quiet)
        assert not running.head().stages[KEPT].finished
        is_seen.set()
        running.until(lambda: running.head().stages[KEPT].finished)


class DiesOnceTheInputHasEnded:
    """Ends all work of an attempt from one of the steps on with which a stage goes on without its input."""

    def __init__(self, at: Step, *, before: bool) -> None:
        self._at, self._dies_before = at, before
        self.died = self._planned = False

    def before(self, step: Step) -> None:
        self._pass(step, before=True)

    def after(self, step: Step) -> None:
        self._planned |= step is Step.PLAN_BATCH
        self._pass(step, before=False)

    def _pass(self, step: Step, *, before: bool) -> None:
        planned = self._planned or (step, before) == (Step.PLAN_BATCH, True)
        self.died |= planned and (step, before) == (self._at, self._dies_before)
        if self.died:
            raise Crashed(step.value)


@pytest.mark.parametrize(
    ("at", "before"),
    [
        pytest.param(Step.PLAN_BATCH, True, marks=pytest.mark.nightly),
        (Step.PLAN_BATCH, False),
        pytest.param(Step.STAGE_VERSION, True, marks=pytest.mark.nightly),
        pytest.param(Step.STAGE_VERSION, False, marks=pytest.mark.nightly),
    ],
)
def test_the_attempt_after_a_death_at_the_end_of_an_input_does_not_read_the_input_again(
    site: Site, history: Events, live: Events, at: Step, *, before: bool
) -> None:
    pipeline = in_one_stage(site, history, live)
    live.add(150)
    dies = DiesOnceTheInputHasEnded(at, before=before)
    with observed_by(dies), Running(site.spark, pipeline, site.home) as running:
        running.ends()
    assert dies.died
    history.add(500)  # after the recorded end
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: is_public(site, live.rows))
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.nightly
def test_a_stage_whose_input_has_ended_is_drained_and_shown_as_ended_while_other_stages_run(
    site: Site, history: Events, live: Events
) -> None:
    with Running(site.spark, in_a_stage_of_its_own(site, history, live), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        live.add(100)
        manifest = running.checkpointed(2)
    assert manifest.stages[StageName("cleaned")].finished
    assert not manifest.stages[StageName("minutes")].finished


def test_a_stop_in_the_middle_of_a_bounded_input_leaves_the_rest_to_the_next_start(
    site: Site, history: Events, live: Events, tmp_path: Path
) -> None:
    """F7: the stage whose input ends is between two of its batches, not at its end."""
    stop_in_the_middle(site, history, live, tmp_path / "held", drain=False)
    live.add(150)
    with Running(site.spark, that_waits(site, history, live, tmp_path / "held"), site.home) as running:
        running.until(lambda: is_public(site, live.rows))
        assert running.head().stages[StageName("cleaned")].finished
    assert ids(site, "cleaned") == list(range(LIVE_FROM))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.nightly
def test_a_drain_in_the_middle_of_a_bounded_input_flushes_the_read_rows_and_leaves_the_rest_to_a_restore(
    site: Site, history: Events, live: Events, tmp_path: Path
) -> None:
    live.add(150)
    running, read = stop_in_the_middle(site, history, live, tmp_path / "held", drain=True)
    assert_same(public(site.tables / "minutes"), answer(all_minutes(site, [*read, *range(LIVE_FROM, live.rows)])))
    drained = StartOptions(restore=RestoreFrom(savepoint=f"{running.files.url}/savepoints/stop-now", allow_drained=True))
    with Running(site.spark, that_waits(site, history, live, tmp_path / "held"), site.home, options=drained) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        spark_jobs("stop", "--home", site.home, "--drain")
        running.stopped()
    assert ids(site, "cleaned") == list(range(LIVE_FROM))
    minutes = site.spark.read.format("delta").load(str(site.tables / "minutes")).groupBy("minute")
    assert_same(answer(minutes.agg(F.sum("events"), F.sum("ids"))), answer(all_minutes(site, list(range(live.rows)))))


def read_of_topic(running: Running, manifest: Manifest) -> dict[int, int]:
    """Returns for each partition the number of records in a checkpoint."""
    batch, work = manifest.stages[StageName("minutes")].batch, running.files.below(f"work/{manifest.work_directory}")
    lines = SparkLog(work, checkpoint_directory(StageName("minutes"))).offsets(batch).sources if batch != NO_BATCH else ()
    (line,) = [line for line in lines if TOPIC in line] or ["{}"]
    return {number: offset for (_, number), offset in partition_offsets(line).items()}


# test_a_stop_in_the_middle_of_a_bounded_input_leaves_the_rest_to_the_next_start runs by day, and test_rescaling.py changes the
# partitions.
@pytest.mark.nightly
def test_topic_partitions_that_end_one_by_one_go_on_with_another_number_of_state_partitions(
    site: Site, kafka: KafkaBroker, live: Events
) -> None:
    """F3: one partition has ended at the checkpoint and the others have not. All of them have later records, which do not count."""
    kafka.create_topic(TOPIC, len(PARTITIONS))
    for number, numbers in enumerate(PARTITIONS):
        kafka.send(TOPIC, [str(each).encode() for each in numbers], number)
    with Running(site.spark, of_a_topic(site, kafka, live, per_batch=20), site.home) as running:
        running.until(lambda: running.store.taken() and read_of_topic(running, running.head()).get(1) == len(PARTITIONS[1]))
        kafka.add_partitions(TOPIC, len(PARTITIONS) + 1)
        for number in range(len(PARTITIONS) + 1):
            kafka.send(TOPIC, [b"0"] * 50, number)
        running.checkpointed()
        read = read_of_topic(running, running.head())
    assert read[1] == len(PARTITIONS[1])
    assert read[0] < len(PARTITIONS[0])
    assert read[2] < len(PARTITIONS[2])
    lose(site.home / "work")
    pipeline = of_a_topic(site, kafka, live, per_batch=500)
    with Running(site.spark, pipeline, site.home, options=StartOptions(state_partitions=3)) as running:
        live.add(150)
        running.until(lambda: is_public(site, live.rows) and "past" in running.head().stages[StageName("minutes")].ended)
    kafka.delete_topic(TOPIC)
    with Running(site.spark, pipeline, site.home) as running:  # an ended input may be gone
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.nightly
def test_a_new_stage_before_an_ended_stage_is_refused_and_a_new_stage_behind_it_ends_at_once(
    site: Site, history: Events, live: Events, tmp_path: Path
) -> None:
    """F6: the stage that has ended would have to begin again."""
    with Running(site.spark, in_a_stage_of_its_own(site, history, live), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        spark_jobs("stop", "--home", site.home, "--target", tmp_path / "savepoint")
        running.stopped()
    options = StartOptions(restore=RestoreFrom(savepoint=open_files(str(tmp_path / "savepoint")).url))
    error = refused(site, with_a_stage(site, history, live, before=True), site.home, options)
    assert isinstance(error, RejectedError)
    assert "cleaned cannot go on: it read past and reads first" in error.failed
    behind = with_a_stage(site, history, live, before=False)
    with Running(site.spark, behind, site.home, options=options) as running:
        running.until(lambda: running.status and running.status.stages[StageName("behind")].state is StageState.ENDED)
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
        head = running.head()
    assert head.stages[StageName("cleaned")].finished
    assert head.stages[StageName("behind")].finished
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))
