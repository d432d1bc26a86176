"""A table's history, then its live tail. No row is lost or doubled at the seam, whenever rows come and attempts end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName, RoundNumber, StageName
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.runtime.inputs.inputs import pin_leaves
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.live_pipeline import SECOND_US, Events
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark

HISTORY_ROWS = 900
DELAY_S = 10


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """A table whose newest rows came first. If they were read in its order, all other rows would be late."""
    found = Events(tmp_path / "events")
    for begin in range(HISTORY_ROWS - 300, -1, -300):
        ids = range(begin, begin + 300)
        at = pa.array([number * SECOND_US for number in ids], pa.timestamp("us", tz="UTC"))
        write_deltalake(str(found.path), pa.table({"id": pa.array(ids, pa.int64()), "at": at}), mode="append")
    found.rows = HISTORY_ROWS
    return found


def read(path: Path, **options: Any) -> Callable[[SparkSession], DataFrame]:
    where = str(path)

    def stream(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).options(**options).load(where)

    return stream


def of_the_clock(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("value AS id", "timestamp AS at")


def seam(
    site: Site, events: Events, *, after: str | None = "history", tail: Callable[[SparkSession], DataFrame] | None = None
) -> Pipeline:
    """Declares a copy and counts per minute. Both stages read the history and the tail."""
    pipeline = Pipeline("seam", checkpoint=CheckpointSettings(interval="1 second"))
    pipeline.source(bounded=True, event_time="at", name="history")(read(events.path))
    pipeline.source(bounded=False, after=after, event_time="at", watermark_delay=f"{DELAY_S} seconds", name="tail")(
        tail or read(events.path)
    )

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(history: DataFrame, tail: DataFrame) -> DataFrame:
        return history.unionByName(tail).select("id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(history: DataFrame, tail: DataFrame) -> DataFrame:
        return minutes_of(history.unionByName(tail))

    return pipeline


def minutes_of(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"), F.sum("id").alias("ids"))
    return counts.select(F.col("minute.start").alias("minute"), "events", "ids")


def is_public(site: Site, events: Events) -> Callable[[], bool]:
    """Returns a function that tells whether every row is public, and every window that the watermark has passed."""
    closed = (events.rows - 1 - DELAY_S) // 60
    return lambda: public_count(site.tables / "copied") == events.rows and public_count(site.tables / "minutes") == closed


def assert_equals_a_batch_query(site: Site, events: Events) -> None:
    rows = site.spark.read.format("delta").load(str(events.path))
    assert_same(public(site.tables / "copied"), answer(rows.select("id")))
    passed = minutes_of(rows).where(
        F.col("minute") + F.expr("INTERVAL 1 MINUTE") <= F.timestamp_seconds(F.lit(events.rows - 1 - DELAY_S))
    )
    assert_same(public(site.tables / "minutes"), answer(passed))


@pytest.fixture
def rows_come_at_the_seam(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits rows after the end was pinned, and before the tail is read."""
    pin = pin_leaves

    def then_a_commit(*arguments: Any) -> Any:
        pins = pin(*arguments)
        events.add(70)
        return pins

    monkeypatch.setattr("spark_jobs.runtime.stages.stage_inputs.pin_leaves", then_a_commit)


@pytest.mark.usefixtures("rows_come_at_the_seam")
def test_every_row_is_copied_once_although_rows_come_at_the_seam_and_attempts_end(site: Site, events: Events) -> None:
    with Running(site.spark, seam(site, events), site.home) as running:
        running.until(lambda: public_count(site.tables / "copied") == HISTORY_ROWS + 70)
        events.add(150)
        running.until(is_public(site, events))
    assert events.rows == HISTORY_ROWS + 70 + 150, "the end is looked up once"
    assert_equals_a_batch_query(site, events)
    events.add(150)
    with Running(site.spark, seam(site, events), site.home) as running:  # in place
        running.until(is_public(site, events))
    lose(site.home / "work")
    events.add(150)
    with Running(site.spark, seam(site, events), site.home) as running:  # from the checkpoint
        running.until(is_public(site, events))
    assert_equals_a_batch_query(site, events)


# test_every_row_is_copied_once_although_rows_come_at_the_seam_and_attempts_end has the seam by day.
@pytest.mark.nightly
def test_a_tail_waits_for_a_version_that_does_not_exist_yet_also_in_the_next_attempt(site: Site, events: Events) -> None:
    copied = site.tables / "copied"
    with Running(site.spark, seam(site, events), site.home) as running:
        running.until(lambda: public_count(copied) == HISTORY_ROWS)
    pinned = Rounds(open_files(str(site.home))).pinned(RoundNumber(1), InputName("history"))
    assert pinned is not None
    (pin,) = pinned.pins
    assert isinstance(pin, DeltaPin)
    assert pin.version == 2
    with Running(site.spark, seam(site, events), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("copied")].state is StageState.RUNNING)
        events.add(150)
        running.until(is_public(site, events))
    assert_equals_a_batch_query(site, events)


@pytest.mark.nightly
def test_a_tail_that_is_not_declared_to_follow_the_history_reads_it_again(site: Site, events: Events) -> None:
    """The test shows why the argument is needed."""
    with Running(site.spark, seam(site, events, after=None), site.home) as running:
        running.until(lambda: public_count(site.tables / "copied") == 2 * HISTORY_ROWS)


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (lambda events, other: read(other), "which reads another table"),
        (lambda events, other: read(events.path, startingVersion=1), "sets startingVersion itself"),
        (lambda events, other: of_the_clock, "does not read exactly one Delta table"),
        (
            lambda events, other: lambda spark: read(events.path)(spark).union(read(other)(spark)),
            "does not read exactly one Delta table",
        ),
    ],
)
def test_a_tail_that_does_not_read_the_table_of_its_history_is_refused(
    site: Site, events: Events, tmp_path: Path, tail: Any, problem: str
) -> None:
    other = Events(tmp_path / "other")
    other.add(1)
    with Running(site.spark, seam(site, events, tail=tail(events, other.path)), site.home) as running:
        error = running.ends()
    assert isinstance(error, InvalidPipelineError)
    assert problem in error.failed
