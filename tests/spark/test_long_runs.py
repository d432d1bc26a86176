"""Weeks of batches in an hour: the files, the JVM heap and the Python memory of a running pipeline stop growing."""

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import HISTORY_KEPT
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from tests.spark.conftest import Site
from tests.spark.rows import public
from tests.support.running import Running

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

THOUSAND = 1_000
THOUSANDS = 3
ROWS = 4
MEGABYTE = 1_000_000
STAGE = "copied"
"""The first stage. Each of its batches reads one file."""
HOUR_S = 3_600.0


@dataclass(frozen=True)
class Kept:
    """The resources in use after some number of batches."""

    files: Counter[str]
    """The number of files by directory. Numbers in directory names are left out."""
    size_bytes: int
    heap_bytes: int
    python_bytes: int
    threads: int
    open_files: int

    def history(self) -> int:
        return self.files["history"]

    def state_files(self) -> int:
        return sum(count for place, count in self.files.items() if "/checkpoint/state/" in place)

    def others(self) -> int:
        return self.files.total() - self.history() - self.state_files()

    @classmethod
    def of(cls, site: Site) -> "Kept":
        files = [path for path in site.home.rglob("*") if path.is_file()]
        runtime = site.spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
        gc.collect()
        runtime.gc()
        process = psutil.Process()
        return cls(
            Counter(_place(path.relative_to(site.home)) for path in files),
            sum(_size_bytes(path) for path in files),
            runtime.totalMemory() - runtime.freeMemory(),
            process.memory_info().rss,
            threading.active_count(),
            process.num_fds(),
        )


def _place(path: Path) -> str:
    return "/".join("N" if part.isdecimal() else part for part in path.parent.parts)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it was cleaned up in between
        return 0


def _pipeline(site: Site, source: Path) -> Pipeline:
    pipeline = Pipeline("weeks", checkpoint=CheckpointSettings(interval="2 seconds", retained=2))

    @pipeline.source(bounded=False, event_time="at", watermark_delay="10 seconds")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")))
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    return pipeline


def _thousands(site: Site, running: Running) -> Iterator[Kept]:
    """Yields the resources in use after each thousand batches."""
    for thousand in range(1, THOUSANDS + 1):
        running.until(lambda: _batches(running) >= thousand * THOUSAND)  # noqa: B023
        running.checkpointed()
        yield Kept.of(site)


def _batches(running: Running) -> int:
    live = Attempts(running.files).latest()
    if live is None or live.work_directory is None:
        return 0
    return SparkLog(running.files.below(live.work_directory.path), checkpoint_directory(StageName(STAGE))).last_commit() + 1


def test_the_third_thousand_of_batches_leaves_no_more_files_and_memory_than_the_second(site: Site) -> None:
    source = site.home.parent / "events"
    files = (THOUSANDS + 1) * THOUSAND
    events = site.spark.range(0, files * ROWS, numPartitions=files)
    events.select("id", F.timestamp_seconds("id").alias("at")).write.format("delta").save(str(source))
    kept = []
    with Running(site.spark, _pipeline(site, source), site.home, patience_s=HOUR_S) as running:
        for found in _thousands(site, running):
            kept.append(found)
            print(f"\nafter {len(kept):,} thousand batches: {found}", flush=True)
    second, third = kept[-2:]
    assert third.history() <= HISTORY_KEPT
    assert third.state_files() < 1.5 * second.state_files(), "Spark deletes those of old batches once a minute"
    assert third.others() - second.others() < 100, third.files - second.files
    assert third.size_bytes - second.size_bytes < MEGABYTE
    assert third.heap_bytes - second.heap_bytes < 10 * MEGABYTE
    assert third.python_bytes - second.python_bytes < 10 * MEGABYTE
    assert third.threads <= second.threads + 2
    assert third.open_files <= second.open_files + 100, "one for each checkpoint would be hundreds more"
    rows = public(site.tables / "copied", ["id"])
    assert len(rows) == rows.total() >= THOUSANDS * THOUSAND * ROWS
