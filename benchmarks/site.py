"""The site of a benchmark's runs: one session, inputs that are written once, and the two ways to do the same work."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import Publish
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.open import open_files

SETTINGS: Mapping[str, str] = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",  # a state of some age has a snapshot
}
"""The same for both ways: the plain one runs in a session that differs in nothing else."""
COLD_SETTINGS: Mapping[str, str] = {key: value for key, value in SETTINGS.items() if not key.endswith("ProgressUpdates")}
"""Settings of a separate process."""


Work = Callable[[DataFrame], DataFrame]
"""The function of a stage."""


@dataclass(frozen=True)
class Input:
    """A Delta table that is read one file a batch."""

    path: Path
    files: int
    rows: int
    """In all files."""


@dataclass(frozen=True)
class Outcome:
    """The durations of one run."""

    run_s: float
    """From the call to its return."""
    rows_per_s: float
    """Of a batch that had rows, by Spark's ``triggerExecution``, the median."""
    state_rows: int
    """The most rows that the state of all operators held after a batch."""
    state_bytes: int
    """The same in memory, as Spark counts it."""
    checkpoint_s: float = 0.0
    """The final checkpoint, from the cut to its manifest; 0 where there is none."""


class Site:
    """Runs in a directory of their own each, removed afterwards: a full page cache of old runs helps nobody.

    Args:
        directory: Empty.
        jars: Others than Delta's.
    """

    def __init__(self, directory: Path, jars: Sequence[str] = ()) -> None:
        self.directory = directory
        self._numbers = count()
        settings = {**SETTINGS, "spark.sql.warehouse.dir": str(directory / "hive")}
        self.spark: SparkSession = start_session("benchmarks", settings, jars=jars)

    def input(self, name: str, files: int, rows_per_file: int) -> Input:
        """Writes a table with that many files: a key, a number, a text and a time; a second between two rows, in order."""
        path = self.directory / name
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

    def ours(self, source: Input, stages: int = 1, does: Work | None = None) -> Outcome:
        """A pipeline of ``stages`` stages in a row, from nothing to its published tables."""
        directory = self.new()
        outcome = self.run(chain(source, directory, stages, does=does or work), directory)
        self._check(directory, source, stages)
        return outcome

    def run(self, pipeline: Pipeline, directory: Path, publish: Publish | None = None) -> Outcome:
        """A run of any pipeline, with its home in ``directory``; what it has left stays there."""
        began_s = time.monotonic()
        pipeline.run(spark=self.spark, home=directory / "home", publish=publish)
        run_s = time.monotonic() - began_s
        log = (directory / "home" / "logs" / "1.log").read_text().splitlines()
        batches = [entry["progress"] for line in log if "progress" in (entry := json.loads(line))]
        files = open_files(str(directory / "home"))
        history = CheckpointStore(files).history()[-1]
        return outcome(run_s, batches, sum(step.duration_s for step in history.steps))

    def plain(self, source: Input, stages: int = 1, does: Work | None = None) -> Outcome:
        """As many queries, one after the other, each with Delta's own streaming sink."""
        directory = self.new()
        session, read, batches = self.spark.newSession(), str(source.path), []
        began_s = time.monotonic()
        for number in range(stages):
            table = str(directory / f"stage_{number}")
            query = plain_query(session, read, table, f"{directory}/checkpoint_{number}", does or work)
            query.awaitTermination()
            batches += [json.loads(progress.json) for progress in query.recentProgress]
            read = table
        run_s = time.monotonic() - began_s
        self._check(directory, source, stages)
        return outcome(run_s, batches)

    def new(self) -> Path:
        """An empty directory for a run."""
        directory = self.directory / f"run-{next(self._numbers)}"
        directory.mkdir()
        return directory

    def rows(self, table: Path) -> int:
        """Returns the number of rows of a Delta table."""
        return self.spark.read.format("delta").load(str(table)).count()

    def _check(self, directory: Path, source: Input, stages: int) -> None:
        """Removes a run that has given the right rows."""
        for number in range(stages):
            rows = self.rows(directory / f"stage_{number}")
            if rows != source.rows:
                raise AssertionError(f"stage {number} in {directory} has {rows} rows instead of {source.rows}")
        shutil.rmtree(directory, ignore_errors=True)  # Spark keeps a state in order for a while after its query has ended


def outcome(run_s: float, batches: Sequence[Mapping[str, Any]], checkpoint_s: float = 0.0) -> Outcome:
    """Returns the durations of a run, from Spark's reports of its batches."""
    return Outcome(
        run_s=run_s,
        rows_per_s=median(
            batch["numInputRows"] / batch["durationMs"]["triggerExecution"] * 1_000 for batch in batches if batch["numInputRows"]
        ),
        state_rows=max(sum(operator["numRowsTotal"] for operator in batch["stateOperators"]) for batch in batches),
        state_bytes=max(sum(operator["memoryUsedBytes"] for operator in batch["stateOperators"]) for batch in batches),
        checkpoint_s=checkpoint_s,
    )


def work(frame: DataFrame) -> DataFrame:
    """Little, so that what is measured is the sink."""
    return frame.where("value >= 0").withColumn("value", F.col("value") * 2)


def keyed_work(frame: DataFrame) -> DataFrame:
    """The same, and state: a key for each row."""
    return work(frame).dropDuplicates(["id"])


def chain(
    source: Input, directory: Path, stages: int, conf: Mapping[str, str] = MappingProxyType({}), does: Work = work
) -> Pipeline:
    """A pipeline whose stages each do the same with the rows of the one before."""
    pipeline = Pipeline("benchmark", conf=conf)

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

    before = "rows"
    for number in range(stages):
        name = f"stage_{number}"
        sink = DeltaSink(str(directory / name))
        pipeline.stage(sink=sink, inputs={"frame": before}, name=name, max_files_per_trigger=1 if number else None)(does)
        before = name
    return pipeline


def plain_query(session: SparkSession, read: str, table: str, checkpoint: str, does: Work = work) -> StreamingQuery:
    """Starts the query that a stage is compared with: the same work, written by Delta's own streaming sink."""
    stream = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(read)
    return (
        does(stream).writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
    )
