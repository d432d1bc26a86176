"""Where the runs of a benchmark happen: one session, inputs that are written once, and the two ways to do the same work."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.runtime.session import start_session

SETTINGS: Mapping[str, str] = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
"""The same for both ways: the plain one runs in a session that differs in nothing else."""


@dataclass(frozen=True)
class Input:
    """A Delta table that is read one file a batch."""

    path: Path
    files: int
    rows: int
    """In all files."""


@dataclass(frozen=True)
class Outcome:
    """What one run took."""

    run_s: float
    """From the call to its return."""
    batch_ms: float
    """Spark's ``triggerExecution`` of a batch that had rows, the median."""


class Site:
    """Runs in a directory of their own each, removed afterwards: a full page cache of old runs helps nobody.

    Args:
        directory: Empty.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self.spark: SparkSession = start_session("benchmarks", {**SETTINGS, "spark.sql.warehouse.dir": str(directory / "hive")})

    def input(self, name: str, files: int, rows_per_file: int) -> Input:
        """Writes a table with that many files: a key, a number, a text and a time."""
        path = self._directory / name
        rows = files * rows_per_file
        frame = self.spark.range(0, rows, numPartitions=files).select(
            "id",
            (F.col("id") % 1_000).alias("key"),
            F.rand(7).alias("value"),
            F.concat(F.lit("row "), F.col("id")).alias("text"),
            F.timestamp_seconds(F.col("id")).alias("at"),
        )
        frame.write.format("delta").save(str(path))
        return Input(path, files, rows)

    def ours(self, source: Input, stages: int = 1) -> Outcome:
        """A pipeline of ``stages`` stages in a row, from nothing to its published tables."""
        directory = self._new()
        pipeline = chain(source, directory, stages)
        began_s = time.monotonic()
        pipeline.run(spark=self.spark, home=directory / "home")
        run_s = time.monotonic() - began_s
        log = (directory / "home" / "attempts" / "1.log").read_text().splitlines()
        batches = [entry["progress"] for line in log if "progress" in (entry := json.loads(line))]
        return self._outcome(directory, source, run_s, batches, stages)

    def plain(self, source: Input, stages: int = 1) -> Outcome:
        """As many queries, one after the other, each with Delta's own streaming sink."""
        directory = self._new()
        session, read, batches = self.spark.newSession(), str(source.path), []
        began_s = time.monotonic()
        for number in range(stages):
            table = str(directory / f"stage_{number}")
            query = _plain_query(session, read, table, f"{directory}/checkpoint_{number}")
            query.awaitTermination()
            batches += [json.loads(progress.json) for progress in query.recentProgress]
            read = table
        return self._outcome(directory, source, time.monotonic() - began_s, batches, stages)

    def _new(self) -> Path:
        directory = self._directory / f"run-{next(self._numbers)}"
        directory.mkdir()
        return directory

    def _outcome(self, directory: Path, source: Input, run_s: float, batches: list[dict[str, Any]], stages: int) -> Outcome:
        for number in range(stages):
            rows = self.spark.read.format("delta").load(str(directory / f"stage_{number}")).count()
            if rows != source.rows:
                raise AssertionError(f"stage {number} in {directory} has {rows} rows instead of {source.rows}")
        shutil.rmtree(directory)
        return Outcome(run_s, median(batch["durationMs"]["triggerExecution"] for batch in batches if batch["numInputRows"]))


def chain(source: Input, directory: Path, stages: int) -> Pipeline:
    """A pipeline whose stages each do what :func:`work` does with the rows of the one before."""
    pipeline = Pipeline("benchmark")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

    before = "rows"
    for number in range(stages):
        name = f"stage_{number}"
        sink = DeltaSink(str(directory / name))
        pipeline.stage(sink=sink, inputs={"frame": before}, name=name, max_files_per_trigger=1 if number else None)(work)
        before = name
    return pipeline


def work(frame: DataFrame) -> DataFrame:
    """Little, so that what is measured is the sink."""
    return frame.where("value >= 0").withColumn("value", F.col("value") * 2)


def _plain_query(session: SparkSession, read: str, table: str, checkpoint: str) -> StreamingQuery:
    stream = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(read)
    return (
        work(stream).writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
    )
