"""A pipeline goes on with its state in another number of partitions, from a savepoint and from its own newest checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import Step, observed_by
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.growing_table import Events, bounded_at_night, events_of
from tests.support.running import Running, lose
from tests.support.running_minutes import closed_minutes, ids, three_stages
from tests.support.state_partitions import partitions
from tests.support.stopped_pipelines import refused, restored, stopped

pytestmark = pytest.mark.spark

STATEFUL = ("minutes", "first", "pairs", "sessions")


@pytest.fixture
def events(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = events_of(request, tmp_path / "events", monkeypatch)
    made.add(150)
    return made


def every_operator(site: Site, events: Events) -> Pipeline:
    """Declares windows, two windows in a row, duplicates, a join of two streams, sessions, and a stage without state."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    events.source(pipeline)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(events: DataFrame) -> DataFrame:
        return counted(events)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "first")))
    def first(copied: DataFrame) -> DataFrame:
        twice = copied.where("id > 0").withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))
        return twice.dropDuplicatesWithinWatermark(["id"]).select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "pairs")))
    def pairs(events: DataFrame, copied: DataFrame) -> DataFrame:
        other = copied.where("id > 0").select(F.col("id").alias("other"), F.col("at").alias("then"))
        near = F.expr("other = id - 5 AND then BETWEEN at - INTERVAL 10 SECONDS AND at")
        return events.join(other, near).select("id", "other")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "sessions")))
    def sessions(copied: DataFrame) -> DataFrame:
        key = F.session_window("at", "3 seconds")
        rows = copied.where("id % 20 < 12").groupBy(key, (F.col("id") % 2).alias("odd")).agg(F.count("*").alias("events"))
        return rows.select("session_window.start", "odd", "events")

    return pipeline


def counted(events: DataFrame) -> DataFrame:
    """Counts events per half minute, and the half minutes and events of each minute."""
    minutes = events.groupBy(F.window("at", "30 seconds")).agg(F.count("*").alias("events"))
    both = minutes.groupBy(F.window("window", "1 minute")).agg(F.count("*").alias("halves"), F.sum("events").alias("events"))
    return both.select(F.col("window.start").alias("minute"), "halves", "events")


@pytest.fixture(autouse=True)
def _two_partitions(spark: SparkSession) -> Iterator[None]:
    """Sets two partitions for the first start."""
    before = spark.conf.get("spark.sql.shuffle.partitions") or ""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize("wanted", [pytest.param(5, marks=pytest.mark.nightly), 1])
@bounded_at_night
def test_a_savepoint_can_be_restored_with_more_or_fewer_state_partitions(
    site: Site, events: Events, tmp_path: Path, wanted: int
) -> None:
    events.later(250)
    pipeline = every_operator(site, events)
    before = stopped(site, pipeline, events, tmp_path / "savepoint")
    assert partitions(before) == dict.fromkeys(["minutes"] if events.bounded else STATEFUL, 2)
    events.add(250)
    options = StartOptions(restore=restored(tmp_path / "savepoint").restore, state_partitions=wanted)
    events.end()
    left_over = [(360, 2, 42)] if events.bounded else []
    counts = [*([1, 1] if events.bounded else []), *[6] * (40 if events.bounded else 38)]
    with Running(site.spark, pipeline, site.home, options=options) as running:
        if events.bounded:
            running.stopped()
        running.until(lambda: len(ids(site, "pairs")) == events.rows - 6)
        running.until(lambda: public_count(site.tables / "minutes") == 6 + len(left_over))
        running.until(lambda: public_count(site.tables / "sessions") == len(counts))
        assert partitions(running.head()) == dict.fromkeys(STATEFUL, wanted)
    assert ids(site, "copied") == list(range(events.rows))
    assert ids(site, "pairs") == list(range(6, events.rows))
    assert ids(site, "first") == list(range(1, events.rows))
    found = sorted(
        (int(minute.timestamp()), halves, count) for minute, halves, count in public(site.tables / "minutes").elements()
    )
    assert found == [*((60 * minute, 2, 60) for minute in range(6)), *left_over]
    assert sorted(count for _, _, count in public(site.tables / "sessions").elements()) == counts


@pytest.mark.nightly
@pytest.mark.parametrize("unaligned", [False, True])
def test_a_rescaled_pipeline_keeps_its_number_of_partitions_in_place_and_after_a_loss(
    site: Site, events: Events, unaligned: bool
) -> None:
    pipeline = three_stages(site, events, unaligned=unaligned)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 151)
        assert running.head().aligned != unaligned
    events.add(100)
    with Running(site.spark, pipeline, site.home, options=StartOptions(state_partitions=3)) as running:
        running.until(lambda: len(ids(site, "again")) == 251)
        first = running.head()
        assert partitions(first) == {"minutes": 3}
    events.add(100)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 351)
        second = running.head()
        assert partitions(second) == {"minutes": 3}
    assert second.work_directory == first.work_directory
    lose(site.home / "work")
    events.add(100)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 451)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, 451).count())
        assert partitions(running.head()) == {"minutes": 3}
    assert ids(site, "copied") == list(range(451))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, 451)))


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_next_attempt_repeats_a_rescale_that_died(site: Site, events: Events, after: bool) -> None:
    pipeline = three_stages(site, events)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 151)

    class Dies:
        def before(self, step: Step) -> None:
            if step is Step.RESCALE and not after:
                raise StorageError("The disk is away.")

        def after(self, step: Step) -> None:
            if step is Step.RESCALE and after:
                raise StorageError("The disk is away.")

    with observed_by(Dies()):
        assert isinstance(refused(site, pipeline, site.home, StartOptions(state_partitions=3)), StorageError)
    events.add(100)
    with Running(site.spark, pipeline, site.home) as running:  # the number need not be given again
        running.until(lambda: len(ids(site, "again")) == 251)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, 251).count())
        assert partitions(running.head()) == {"minutes": 3}
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, 251)))
