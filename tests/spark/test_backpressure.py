"""``max_channel_bytes``: a stage waits for its consumers. A drain does not wait for a stage that runs only after it."""

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support.growing_table import Events
from tests.support.running import Running
from tests.support.running_minutes import staged_by

pytestmark = pytest.mark.spark


@pytest.fixture
def events(tmp_path: Path) -> Events:
    made = Events(tmp_path / "events")
    made.add(200)
    return made


def narrow(site: Site, events: Events, switch: Path) -> Pipeline:
    """Declares counts per minute, and counts of those per two minutes, with the narrowest channels.

    The first minute waits for ``switch``.
    """
    pipeline = Pipeline("narrow", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)
    there = str(switch)

    def once_it_is_there(number, at_s):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        while at_s < 60 and not Path(there).exists():  # a single task waits: the other core is for the other stages
            time.sleep(0.05)
        return number

    @pipeline.stage(max_channel_bytes=1)
    def minutes(events: DataFrame) -> DataFrame:
        counts = events.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.window_time("minute").alias("at"), "events")

    @pipeline.stage(max_channel_bytes=1)
    def pairs(minutes: DataFrame) -> DataFrame:
        events = F.udf(once_it_is_there, "long", useArrow=False)("events", F.unix_timestamp("at"))
        counts = minutes.groupBy(F.window("at", "2 minutes").alias("pair")).agg(F.sum(events).alias("events"))
        return counts.select(F.window_time("pair").alias("at"), "events")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "counted")))
    def counted(pairs: DataFrame) -> DataFrame:
        return pairs.select("events")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "beside")))
    def beside(events: DataFrame) -> DataFrame:
        return events.select("id")

    return pipeline


def test_a_full_channel_holds_a_stage_but_not_a_drain(site: Site, events: Events, tmp_path: Path) -> None:
    """In the drain, ``pairs`` hands on rows in two batches: when the last minutes reach it, and when it is flushed itself."""
    switch = tmp_path / "switch"
    request = request_id("a", Wanted.STOP)
    with Running(site.spark, narrow(site, events, switch), site.home) as running:
        running.until(lambda: list(site.home.glob("work/*/stages/minutes/checkpoint/commits/1")))
        (work,) = [stages.parent for stages in site.home.glob("work/*/stages")]
        minutes = SparkLog(open_files(str(work)), checkpoint_directory(StageName("minutes")))
        events.add(100)
        running.until(lambda: minutes.last_offsets() == 2)
        for _ in range(2):  # another consumer has read all that and more, and finishes batch after batch
            running.until(staged_by(running, "beside", events))
            events.add(10)
        assert minutes.last_commit() == 1, "what it has staged is read by nobody yet"
        CheckpointRequests(running.files).ask(request, drain=True)
        running.until(lambda: running.status and running.status.state is RunState.STOPPING)
        switch.touch()
        running.stopped()
    read = site.spark.range(301).groupBy(F.window(F.timestamp_seconds("id"), "2 minutes")).agg(F.count("*").alias("events"))
    assert_same(public(site.tables / "counted"), answer(read.select("events")))
