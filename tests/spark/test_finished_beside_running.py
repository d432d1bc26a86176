"""Inputs that end beside inputs that do not: what has ended holds nothing back, and is not read again (F1 to F7)."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.live_pipeline import Events
from tests.support.running import Running

pytestmark = pytest.mark.spark

LIVE_FROM = 1_000
"""The first number of the live rows; history has those before it."""


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


@pytest.mark.parametrize("build", [in_one_stage, in_a_stage_of_its_own])
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


def test_a_stage_of_its_own_is_drained_and_shown_as_ended_while_the_others_run(site: Site, history: Events, live: Events) -> None:
    with Running(site.spark, in_a_stage_of_its_own(site, history, live), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("cleaned")].state is StageState.ENDED)
        live.add(100)
        manifest = running.checkpointed(2)
    assert manifest.stages[StageName("cleaned")].finished
    assert not manifest.stages[StageName("minutes")].finished
