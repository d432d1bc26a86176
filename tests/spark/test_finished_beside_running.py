"""Inputs that end beside inputs that do not: what has ended holds nothing back, and is not read again (F1 to F7)."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.documents import Manifest, RestoreFrom, StageState
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.kafka import partition_offsets
from spark_jobs.runtime.launch import RunOptions
from spark_jobs.runtime.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.spark.test_savepoints import refused
from tests.support.command_line import spark_jobs
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.live_pipeline import Events
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark

LIVE_FROM = 1_000
"""The first number of the live rows; history has those before it."""
TOPIC = "ends-one-by-one"
PARTITIONS = [range(600), range(600, 603), range(603, LIVE_FROM)]
"""What each partition of the topic has."""


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


def with_a_stage(site: Site, history: Events, live: Events, *, before: bool) -> Pipeline:
    """The same with one more stage, before the one that ends or behind it."""
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
    """A topic whose partitions each have an end of their own, and the live rows; both in one stage."""
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


def closed_minutes(site: Site, upto: int) -> DataFrame:
    """The windows that the watermark has passed once rows up to number ``upto`` were read, by a batch query over all rows."""
    rows = site.spark.range(upto).select("id", F.timestamp_seconds("id").alias("at"))
    closed = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"), F.sum("id").alias("ids"))
    passed = closed.where(F.col("minute.end") <= F.timestamp_seconds(F.lit(upto - 1 - 10)))
    return passed.select(F.col("minute.start").alias("minute"), "events", "ids")


def is_public(site: Site, rows: int) -> bool:
    """Whether as many windows are public as the watermark has passed by then."""
    return public_count(site.tables / "minutes") == (rows - 1 - 10) // 60


@pytest.mark.nightly
@pytest.mark.parametrize("build", [in_one_stage, in_a_stage_of_its_own])
def test_the_watermark_moves_on_once_an_input_has_ended(site: Site, history: Events, live: Events, build) -> None:  # type: ignore[no-untyped-def]
    with Running(site.spark, build(site, history, live), site.home) as running:
        for _ in range(2):
            live.add(150)
            running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.parametrize("build", [pytest.param(in_one_stage, marks=pytest.mark.nightly), in_a_stage_of_its_own])
def test_what_has_ended_is_not_read_again_by_the_next_attempt(site: Site, history: Events, live: Events, build) -> None:  # type: ignore[no-untyped-def]
    """Also that the watermark moves on in each of them, as the test above has it of one attempt."""
    pipeline = build(site, history, live)
    with Running(site.spark, pipeline, site.home) as running:
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
    history.add(500)  # after the end that was recorded: no round of this pipeline reads it
    live.add(150)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


@pytest.mark.nightly
def test_a_stage_of_its_own_is_drained_and_shown_as_ended_while_the_others_run(site: Site, history: Events, live: Events) -> None:
    with Running(site.spark, in_a_stage_of_its_own(site, history, live), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        live.add(100)
        manifest = running.checkpointed(2)
    assert manifest.stages[StageName("cleaned")].finished
    assert not manifest.stages[StageName("minutes")].finished


def read_of_topic(running: Running, manifest: Manifest) -> dict[int, int]:
    """By partition how many records a checkpoint has."""
    batch, work = manifest.stages[StageName("minutes")].batch, running.files.below(f"work/{manifest.work_directory}")
    lines = SparkLog(work, checkpoint_directory(StageName("minutes"))).offsets(batch).sources if batch != NO_BATCH else ()
    (line,) = [line for line in lines if TOPIC in line] or ["{}"]
    return {number: offset for (_, number), offset in partition_offsets(line).items()}


def test_partitions_that_end_one_by_one_go_on_from_a_checkpoint_in_another_number_of_state_partitions(
    site: Site, kafka: KafkaBroker, live: Events
) -> None:
    """F3: when the checkpoint is taken one has ended and the others have not; all of them have later records, which do not count."""
    kafka.create_topic(TOPIC, len(PARTITIONS))
    for number, ids in enumerate(PARTITIONS):
        kafka.send(TOPIC, [str(each).encode() for each in ids], number)
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
    with Running(site.spark, pipeline, site.home, options=RunOptions(state_partitions=3)) as running:
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
    kafka.delete_topic(TOPIC)
    with Running(site.spark, pipeline, site.home) as running:  # what has ended may be gone
        live.add(150)
        running.until(lambda: is_public(site, live.rows))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, live.rows)))


def test_a_new_stage_before_one_that_has_ended_is_refused_by_name_and_one_behind_it_ends_at_once(
    site: Site, history: Events, live: Events, tmp_path: Path
) -> None:
    """F6: the one that has ended would have to begin again."""
    with Running(site.spark, in_a_stage_of_its_own(site, history, live), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        spark_jobs("stop", "--home", site.home, "--target", tmp_path / "savepoint")
        running.stopped()
    options = RunOptions(restore=RestoreFrom(savepoint=open_files(str(tmp_path / "savepoint")).url))
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
