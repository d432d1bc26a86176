"""Sources of every kind that have no end. A pipeline goes on in place and from its checkpoint, and each row is public once."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.support.command_line import spark_jobs
from tests.support.kafka_broker import kafka_options
from tests.support.live_pipeline import Events
from tests.support.python_source import add_rows, lines_stream
from tests.support.running import Running, lose
from tests.support.running_minutes import ids

pytestmark = pytest.mark.spark

COPIED, TOPIC = StageName("copied"), "without-an-end"
STEP = 60
"""The number of rows that come at a time."""


class Growing(Protocol):
    """A source to which rows are added."""

    def add(self, numbers: range) -> None:
        """Adds a row for each of the numbers."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """Returns a stream with the numbers in the column ``id``, in several batches for each ``add``."""


class Records:
    """A topic with two partitions."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._broker = request.getfixturevalue("kafka")
        self._broker.create_topic(TOPIC, 2)

    def add(self, numbers: range) -> None:
        for partition in range(2):
            self._broker.send(TOPIC, [str(number).encode() for number in numbers[partition::2]], partition)

    def stream(self, spark: SparkSession) -> DataFrame:
        options = kafka_options(self._broker, TOPIC, maxOffsetsPerTrigger=STEP // 3)
        return (
            spark.readStream.format("kafka")
            .options(**options)
            .load()
            .select(F.col("value").cast("string").cast("long").alias("id"))
        )


class JsonFiles:
    """JSON files that come four at a time, one per batch. In the second attempt, Spark's list of read files becomes a compact one.

    Each file is a month older than the files before it, as with files that were copied with their times or waited elsewhere for days. By
    default, Spark skips files that are a week older than its newest one.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._directory: Path = request.getfixturevalue("tmp_path") / "files"
        self._directory.mkdir()

    def add(self, numbers: range) -> None:
        for part in range(4):
            unfinished = self._directory.parent / "unfinished"
            unfinished.write_text("".join(json.dumps({"id": number}) + "\n" for number in numbers[part::4]))
            os.utime(unfinished, (1_700_000_000 - numbers[part] * 30 * 86_400,) * 2)
            unfinished.rename(self._directory / f"{numbers[part]}.json")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(self._directory))


class Lines:
    """A Python data source."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._path = request.getfixturevalue("tmp_path") / "lines"

    def add(self, numbers: range) -> None:
        add_rows(self._path, [(number,) for number in numbers])

    def stream(self, spark: SparkSession) -> DataFrame:
        return lines_stream(spark, self._path, "id long", rows_per_batch=STEP // 3)


class Table:
    """A Delta table."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._events = Events(request.getfixturevalue("tmp_path") / "events")

    def add(self, numbers: range) -> None:
        for _ in range(3):
            self._events.add(len(numbers) // 3)

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(self._events.path)).select("id")


def rows_in(running: Running) -> int:
    return running.status.stages[COPIED].rows_in if running.status else 0


AT_NIGHT = [pytest.param(kind, marks=pytest.mark.nightly) for kind in (Lines, Table, Records)]
"""These kinds keep only offsets in Spark's checkpoint. Most other tests of running pipelines read Delta, and some read Kafka."""


@pytest.mark.parametrize("kind", [JsonFiles, *AT_NIGHT])
def test_a_pipeline_goes_on_in_place_and_from_its_checkpoint_and_each_row_is_public_once(
    site: Site, request: pytest.FixtureRequest, kind: Callable[[pytest.FixtureRequest], Growing]
) -> None:
    source = kind(request)
    pipeline = Pipeline("copy", checkpoint=CheckpointSettings(interval="1 hour"))
    pipeline.source(name="rows", bounded=False)(lambda spark: source.stream(spark))
    pipeline.stage(name=COPIED, sink=DeltaSink(str(site.tables / "copied")))(lambda rows: rows)

    def checkpoint() -> None:
        assert spark_jobs("checkpoint", "--home", site.home).exit_code == 0

    source.add(range(STEP))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: rows_in(running) == STEP)
        checkpoint()
    source.add(range(STEP, 2 * STEP))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: rows_in(running) >= STEP)
        checkpoint()
        assert ids(site, "copied") == list(range(2 * STEP))
        source.add(range(2 * STEP, 3 * STEP))
        running.until(lambda: rows_in(running) >= 2 * STEP)  # the later half is in no checkpoint
    assert rows_in(running) == 2 * STEP, "in place nothing is read again"
    lose(site.home / "work")
    source.add(range(3 * STEP, 4 * STEP))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: rows_in(running) >= 2 * STEP)
        checkpoint()
    assert rows_in(running) == 2 * STEP, "what is in the checkpoint is not read again"
    assert ids(site, "copied") == list(range(4 * STEP))
    attempts = Attempts(running.files)
    places = [attempts.read(number).work_directory.id for number in attempts.numbers()]
    assert places[0] == places[1] != places[2]
