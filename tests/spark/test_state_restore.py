"""State is kept while its query goes on, and a query goes on with it elsewhere.

Each query runs through three work directories. The second and the third are built from the state kept in the one before. The result is
compared with a batch query over the same input.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jobs.home.layout import WORK
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.watermark import END_OF_TIME_MS
from spark_jobs.runtime.start.restore import restore
from spark_jobs.runtime.state.pinning import StateCopies, new_state_directory, persist, pin
from spark_jobs.storage.files import Files, local_path
from tests.spark.conftest import Site
from tests.support.places import in_a_store_at_night
from tests.support.running import lose
from tests.support.state_site import HOURLY, manifest_of
from tests.support.systems import quick

pytestmark = pytest.mark.spark

SCHEMA = "id long, key long, ts timestamp, value long"
WAIT_S = 120
Build = Callable[[DataFrame], DataFrame]


def windows(events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("ts", "1 minute").alias("w"), "key").agg(
        F.count("*").alias("n"), F.sum("value").alias("total")
    )


def joined(events: DataFrame) -> DataFrame:
    left = events.where("key < 2").select("id", "ts", "key")
    right = events.where("value % 2 = 0").select(F.col("id").alias("other"), F.col("ts").alias("at"))
    return left.join(right, F.expr("other = id + 7 AND at >= ts AND at <= ts + INTERVAL 3 MINUTES"), "left_outer")


def distinct(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id", "ts"]).select("id", "ts")


def timers(events: DataFrame) -> DataFrame:
    class Totals(StatefulProcessor):
        """Reports its count an hour after the newest row of a key. Each row moves the timer."""

        def init(self, handle: Any) -> None:
            self._handle, self._state = handle, handle.getValueState("totals", "n long, total long, due long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            n, total, due = self._state.get() if self._state.exists() else (0, 0, 0)
            newest = due
            for part in rows:
                n, total = n + len(part), total + int(part["value"].sum())
                newest = max(newest, int(part["ts"].max().timestamp() * 1000) + 3_600_000)
            if due and due != newest:
                self._handle.deleteTimer(due)
            self._handle.registerTimer(newest)
            self._state.update((n, total, newest))
            yield pd.DataFrame()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
            n, total, _ = self._state.get()
            self._state.clear()
            yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})

    return events.groupBy("key").transformWithStateInPandas(Totals(), "key long, n long, total long", "append", "EventTime")


def totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


@dataclass
class Input:
    """One file or table version of twenty seconds for each batch. The last row of each is also in the next one."""

    spark: SparkSession
    root: Path
    format: str
    parts: int = 0

    def write(self, parts: int) -> None:
        for part in range(self.parts, self.parts + parts):
            ids = [*range(6 * part, 6 * part + 6), *([6 * part - 1] if part else [])]
            times = [f"2024-01-01 00:{10 * n // 60 // 3:02d}:{10 * n // 3 % 60:02d}" for n in ids]
            rows = [{"id": n, "key": n % 3, "ts": ts, "value": n % 5} for n, ts in zip(ids, times, strict=True)]
            self.parts += 1
            if self.format == "delta":
                frame = self.spark.createDataFrame(pd.DataFrame(rows)).selectExpr("id", "key", "timestamp(ts) ts", "value")
                frame.coalesce(1).write.format("delta").mode("append").save(str(self.root))
            else:
                self.root.mkdir(parents=True, exist_ok=True)
                unfinished = self.root.parent / "unfinished"
                unfinished.write_text("\n".join(map(json.dumps, rows)))
                os.utime(unfinished, (1_700_000_000 + part,) * 2)  # Spark takes the oldest file first
                unfinished.rename(self.root / f"{part:04d}.json")

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format(self.format).option("maxFilesPerTrigger", 1)
        frame = (reader if self.format == "delta" else reader.schema(SCHEMA)).load(str(self.root))
        return frame.withWatermark("ts", "1 minute")

    def batch(self) -> DataFrame:
        reader = self.spark.read.format(self.format)
        return (reader if self.format == "delta" else reader.schema(SCHEMA)).load(str(self.root))


def wait_for_snapshot(work: Path) -> None:
    """Returns once the maintenance thread, which comes every second, has written a snapshot of a state store."""
    deadline = time.monotonic() + WAIT_S
    while not any(work.rglob("*.zip")):
        assert time.monotonic() < deadline, "no snapshot of a state store was written"
        time.sleep(0.05)


@dataclass
class Life:
    """A query that is started several times. The last result of each batch counts."""

    site: Site
    input: Input
    build: Build
    rows: dict[int, list[Row]] = field(default_factory=dict)

    @property
    def home(self) -> Files:
        """Returns the home as another host opens it."""
        return self.site.files

    def log(self, work: str) -> SparkLog:
        return SparkLog(self.work(work), checkpoint_directory(HOURLY))

    def work(self, name: str) -> Files:
        return quick(local_path(self.home, f"{WORK}/{name}"))

    def start(
        self, work: str, *, reached: Event, go_on: Event | None = None, after: int = -1, dies_in: int = -1, **trigger: bool
    ) -> StreamingQuery:
        def take(frame: DataFrame, batch: int) -> None:
            if go_on and batch == after:
                wait_for_snapshot(local_path(self.work(work)))
            found = frame.collect()
            if batch == dies_in:
                raise RuntimeError("killed")
            self.rows[batch] = found
            if batch > after:
                reached.set()
                assert go_on is None or go_on.wait(WAIT_S)

        stream = self.build(self.input.stream()).writeStream.foreachBatch(take).outputMode("append")
        stream = stream.option("checkpointLocation", str(local_path(self.work(work), checkpoint_directory(HOURLY))))
        return stream.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, work: str) -> None:
        assert self.start(work, reached=Event()).awaitTermination(WAIT_S)

    def die(self, work: str, batch: int) -> None:
        """Lets the query compute a batch and write its state. The query dies before the commit."""
        with pytest.raises(StreamingQueryException):
            self.start(work, reached=Event(), dies_in=batch).awaitTermination(WAIT_S)

    def run_and_keep(self, work: str, after: int, checkpoint: int, parent: StageCut | None) -> StageCut:
        """Keeps the state of batch ``after`` while the state of the next one is written. Spark purges it before the end."""
        reached, go_on = Event(), Event()
        query = self.start(work, reached=reached, go_on=go_on, after=after)
        assert reached.wait(WAIT_S)
        log = self.log(work)
        batch = log.last_commit()
        assert batch == after
        place = new_state_directory(self.home, HOURLY, CheckpointId(checkpoint), AttemptNumber(1))
        pinned = pin(StateCopies(self.home, log), batch, place, parent)
        go_on.set()
        assert query.awaitTermination(WAIT_S)
        assert log.first_offsets() > batch, "Spark has purged what was kept"
        return manifest_of(self.home, checkpoint, batch, persist(pinned)).stages[HOURLY]

    def move(self, cut: StageCut, checkpoint: int, target: str, local: str | None = None) -> None:
        """Goes back to a checkpoint in a new work directory. Later results are forgotten."""
        manifest = manifest_of(self.home, checkpoint, cut.batch, cut.files)
        restore(self.home, manifest, self.work(target), [self.work(local)] if local else [])
        self.rows = {batch: rows for batch, rows in self.rows.items() if batch <= cut.batch}

    def drain(self, work: str) -> None:
        log = self.log(work)
        last = log.last_batch()
        log.plan(BatchId(last + 1), log.offsets(last).with_watermark(END_OF_TIME_MS))
        assert self.start(work, reached=Event(), once=True).awaitTermination(WAIT_S)

    def result(self) -> Counter[str]:
        return Counter(str(row) for rows in self.rows.values() for row in rows)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    own = session_for_run(spark)
    own.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "3")
    own.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    own.conf.set("spark.sql.streaming.asyncLogPurge.enabled", "false")
    return own


CASES: dict[str, tuple[Build, Build, str]] = {
    "windows of files": (windows, windows, "json"),
    "windows of a table": (windows, windows, "delta"),
    "a join of two streams": (joined, joined, "json"),
    "without duplicates": (distinct, distinct, "json"),
    "timers": (timers, totals, "json"),
}


AT_NIGHT = CASES.keys() - {"timers"}
"""Cases whose stores have rows of one kind. Timers have several kinds in one store."""


@in_a_store_at_night
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.nightly if case in AT_NIGHT else ()) for case in CASES])
def test_a_query_goes_on_elsewhere_with_its_state_and_gives_the_same_rows(session: SparkSession, site: Site, case: str) -> None:
    streamed, batch, format_ = CASES[case]
    life = Life(site, Input(session, site.root / "in put" / "rows", format_), streamed)
    life.input.write(10)
    life.die("first one", 4)  # the state of batch 4 exists twice from here on
    first = life.run_and_keep("first one", 6, 1, None)
    site.lose_work()
    life.move(first, 1, "second")
    life.input.write(5)
    second = life.run_and_keep("second", first.batch + 3, 2, first)
    life.move(second, 2, "third", local="second")
    lose(local_path(life.work("second")))
    life.run("third")
    life.drain("third")
    assert life.result() == Counter(str(row) for row in batch(life.input.batch()).collect())
    assert any(file.path.endswith(".sst") for file in (*first.files, *second.files)), "there was a snapshot"
    assert {file.stored.split("/")[2] for file in second.files} == {"1-1-1", "2-1-1"}, "old files were not kept twice"
