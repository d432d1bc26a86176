"""How fresh tables are while rows arrive: the time from a row's file until the row is in a public version of a table."""

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.live import Live, remove
from benchmarks.site import Site
from benchmarks.upsert import newest_of
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.storage.open import open_files

FRESHNESS = Kind("freshness", "seconds from a row's file to its public table", Better.LESS, "a pipeline", "two bare queries")
CADENCE = Kind("cadence", "seconds from one checkpoint to the next", Better.LESS, "a pipeline", "the interval")
APPENDED, UPSERTED = "copy", "users"
MODES = {APPENDED: "append", UPSERTED: "upsert"}
_SCHEMA = "id LONG, user INT"
_USERS = 1_000
_ROWS_A_FILE, _PAUSE_S = 500, 0.5
_WARM_S, _MEASURED_S, _LATEST_S = 30.0, 60.0, 60.0
_MOST_S = {"median": 1.5, "95th percentile": 2.5}
"""The promised limits at an interval of one second."""
_LATE_S = 0.3
"""How late a checkpoint may be."""


Way = Callable[[Site, Path, Path, int], AbstractContextManager[None]]
"""Fills both tables while its context is open. Takes the directory of the files, that of the tables, and the interval in seconds."""


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A thousand rows a second into a table that is appended to, and into one with a row for each of 1,000 users."""
    for interval_s in (1,) if quick else (1, 5, 10):
        found = {}
        for way in (_ours, _plain, *((_merged_by_spark,) if interval_s == 1 else ())):
            tell(f"{FRESHNESS.name}: an interval of {interval_s} s, {way.__name__.strip('_')}")
            found[way] = _measured(site, interval_s, way)
        for way, how in {_ours: "", _merged_by_spark: ", an upsert by Spark"}.items():
            if way in found:
                yield _cadence(f"interval {interval_s} s{how}", found[way].checkpoints_s, interval_s)
        for table, mode in MODES.items():
            name = f"{mode}, interval {interval_s} s"
            ours, plain = (found[way].delays_s[table] for way in (_ours, _plain))
            for share, most_s in _MOST_S.items():
                limit_s = most_s if interval_s == 1 else None
                yield Figure(FRESHNESS, f"{name}: {share}", [share_of(share, ours)], [share_of(share, plain)], most=limit_s)


def share_of(name: str, values: list[float]) -> float:
    return median(values) if name == "median" else quantiles(values, n=20)[-1]


def _cadence(name: str, began_s: list[float], interval_s: int) -> Figure:
    """The time between checkpoints. Of twenty, one may be later than the limit."""
    pause_s = share_of("95th percentile", [after - before for before, after in pairwise(began_s)])
    return Figure(CADENCE, f"{name}: 95th percentile", [pause_s], [float(interval_s)], most=interval_s + _LATE_S)


@dataclass(frozen=True)
class Measured:
    """What was measured while rows arrived."""

    delays_s: dict[str, list[float]]
    """By table, the delay of each file."""
    checkpoints_s: list[float]
    """The times at which checkpoints began; none without a pipeline."""


class Arriving:
    """Files that arrive in a directory while the context is open.

    Args:
        directory: The directory, which exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._thread, self._ended = directory, threading.Thread(target=self._write), threading.Event()
        self.arrived: list[tuple[int, float]] = []
        """The last id of each file, and the time at which the file came, in seconds since the epoch."""

    def __enter__(self) -> "Arriving":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        first = 0
        while not self._ended.is_set():
            rows = ({"id": row, "user": row % _USERS} for row in range(first, first + _ROWS_A_FILE))
            hidden = self._directory / f".{first}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hidden.rename(self._directory / f"{first}.json")
            first += _ROWS_A_FILE
            self.arrived.append((first - 1, time.time()))
            self._ended.wait(_PAUSE_S)


def _measured(site: Site, interval_s: int, way: Way) -> Measured:
    directory = site.new()
    source = directory / "arriving"
    source.mkdir()
    with way(site, source, directory, interval_s):
        found = delays(source, {table: partial(public_versions, directory / table) for table in MODES}, interval_s)
    history = CheckpointStore(open_files(str(directory / "home"))).history() if (directory / "home").exists() else ()
    until_s = found.began_s + _MEASURED_S
    checkpoints_s = [at_s for tried in history if found.began_s <= (at_s := tried.began_at.timestamp()) <= until_s]
    if site.rows(directory / APPENDED) != found.last + 1 or site.rows(directory / UPSERTED) != _USERS:
        raise AssertionError(f"the tables in {directory} have other rows than their input")
    remove(directory)
    return Measured(found.by_table_s, checkpoints_s)


Public = Callable[[], list[tuple[int, float]]]
"""Returns the highest ids that have been public, and since when, in order."""


@dataclass(frozen=True)
class Delays:
    """The delays of files that arrived."""

    by_table_s: dict[str, list[float]]
    began_s: float
    """The time from which on files were counted."""
    last: int
    """The last id of all files."""


def delays(source: Path, tables: Mapping[str, Public], interval_s: int) -> Delays:
    """Lets files arrive in a directory, and measures for each table how long each file takes to it.

    Raises:
        AssertionError: The last rows are not public in time.
    """
    with Arriving(source) as arriving:
        time.sleep(_WARM_S + interval_s)
        began_s = time.time()
        time.sleep(_MEASURED_S)
    last, end_s = arriving.arrived[-1][0], time.monotonic() + _LATEST_S
    while not all((public := of()) and public[-1][0] >= last for of in tables.values()):
        if time.monotonic() > end_s:
            raise AssertionError(f"the last rows are not public {_LATEST_S:.0f} s later")
        time.sleep(0.5)
    found = {}
    for table, of in tables.items():
        public = of()
        ids = [newest for newest, _ in public]
        found[table] = [public[bisect_left(ids, id_)][1] - at_s for id_, at_s in arriving.arrived if at_s >= began_s]
    return Delays(found, began_s, last)


def public_versions(table: Path) -> list[tuple[int, float]]:
    """Returns the highest id that a table has had up to each of its versions, by statistics, and when the version became public."""
    newest, found = -1, []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action and action["add"].get("stats"):
                newest = max(newest, json.loads(action["add"]["stats"]).get("maxValues", {}).get("id", -1))
        found.append((newest, commit.stat().st_mtime))
    return found


@contextmanager
def _ours(site: Site, source: Path, directory: Path, interval_s: int, spark_merge_above: str | None = None) -> Iterator[None]:
    pipeline = Pipeline("freshness", checkpoint=CheckpointSettings(interval=f"{interval_s} seconds"))

    @pipeline.source(bounded=False)
    def arriving(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(_SCHEMA).json(str(source))

    @pipeline.stage(sink=DeltaSink(str(directory / APPENDED)))
    def copy(arriving: DataFrame) -> DataFrame:
        return arriving

    upserted = DeltaSink(
        str(directory / UPSERTED), mode="upsert", keys=["user"], sequence_by="id", spark_merge_above=spark_merge_above
    )

    @pipeline.stage(sink=upserted)
    def users(arriving: DataFrame) -> DataFrame:
        return arriving

    with Live(site, pipeline, directory / "home") as live:
        live.until(live.runs)
        yield


def _merged_by_spark(site: Site, source: Path, directory: Path, interval_s: int) -> AbstractContextManager[None]:
    """A publication takes longer than an interval."""
    return _ours(site, source, directory, interval_s, spark_merge_above="0")


@contextmanager
def _plain(site: Site, source: Path, directory: Path, interval_s: int) -> Iterator[None]:
    session, trigger = site.spark.newSession(), f"{interval_s} seconds"
    stream = session.readStream.schema(_SCHEMA).json(str(source))
    DeltaTable.createIfNotExists(session).location(str(directory / UPSERTED)).addColumns(stream.schema).execute()

    def merge(frame: DataFrame, batch: int) -> None:
        table = DeltaTable.forPath(frame.sparkSession, str(directory / UPSERTED)).alias("table")
        into = table.merge(newest_of(frame, "user").alias("rows"), "table.user = rows.user")
        into.whenMatchedUpdateAll("rows.id > table.id").whenNotMatchedInsertAll().execute()

    queries = [
        stream.writeStream.format("delta")
        .option("checkpointLocation", str(directory / "checkpoint-append"))
        .trigger(processingTime=trigger)
        .start(str(directory / APPENDED)),
        stream.writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(directory / "checkpoint-upsert"))
        .trigger(processingTime=trigger)
        .start(),
    ]
    try:
        yield
    finally:
        for query in queries:
            query.stop()
