"""``python -m benchmarks.store_lives DIRECTORY lives|restores quick|whole``: runs a pipeline in S3 and in directories.

It prints what it measured. For lives the server is moto in this process, which counts requests. For restores it is versitygw, because moto
reads a whole object for each part of it that is asked for. Batches are timed by the files that Spark's log of commits gets, so nothing is
asked of the store meanwhile.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.live import Live, remove
from benchmarks.site import Site
from benchmarks.slow_line import slow_line
from benchmarks.state_sizes import BATCHES, LATER, has_snapshots
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.runtime.spark.session import CHECKPOINT_FILES
from spark_jobs.storage.s3_settings import S3Settings
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS, Requests, Served, object_store, s3_environment
from tests.support.versitygw import versitygw

_IN_STORE, _PLAIN = "work directory in S3", "writeStream"
BATCH = Kind(
    "batches in S3", "seconds a batch with state", Better.LESS, "everything in S3", "writeStream with its checkpoint in S3"
)
STORE = Kind("a pipeline in S3", "seconds", Better.LESS, "everything in S3", "everything in directories")
RESTORE = replace(STORE, name="a restore from S3", measure="seconds from the start to the first new batch")
RESTART = replace(RESTORE, name="a restore beside Spark's", plain="writeStream with its checkpoint in S3")
REQUESTS = Kind("requests in S3", "requests", Better.LESS, "ours", "writeStream")
PRICE = Kind(
    "price of requests in S3",
    "US dollars: 0.005 for 1,000 PUT and LIST, 0.0004 for 1,000 GET and HEAD",
    Better.LESS,
    "ours",
    "writeStream",
)
CHECKPOINT_REQUESTS = Kind(
    "requests of a checkpoint in S3", "requests", Better.LESS, _IN_STORE, "work directory on the driver's disk"
)
CHECKPOINT_PRICE = replace(CHECKPOINT_REQUESTS, name="price of a checkpoint's requests in S3", measure=PRICE.measure)
_LATENCIES = {"without latency": 0.0, "25 ms latency": 0.025}
_FEW = 1_000
_WARM = 5
_STARTS = 5
_IDLE_S = 20.0
_LOOK_S = 0.05
_PATIENCE_S = 1_800.0
_PAYLOAD_BYTES = 512
"""Written as hexadecimal digits, so a row has a kilobyte."""
_WAITING = re.compile(r"/(requests|responses|answers|answered|history)(/|$)")
"""The requests with which this program waits for a checkpoint."""
_READS, _WRITES = frozenset({"GET", "HEAD"}), frozenset({"PUT", "POST", "LIST"})


@dataclass(frozen=True)
class Place:
    """A place for everything that a pipeline has.

    Args:
        name: The name of the place.
        root: The URL or the directory.
        latency_s: The time that the store waits before each answer.
        work_root: The work root, if work directories are not on the driver's disk.
    """

    name: str
    root: str
    latency_s: float = 0.0
    work_root: str | None = None

    @property
    def is_store(self) -> bool:
        return urlsplit(self.root).scheme == "s3"

    def options(self) -> dict[str, str]:
        return {"work_root": self.work_root} if self.work_root else {}


@dataclass
class Measured:
    """The numbers of one life: seconds and requests."""

    seconds: dict[str, float] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    price: dict[str, float] = field(default_factory=dict)


class Lives:
    """Lives of a pipeline at different places.

    Args:
        site: Where they run.
        requests: Gets the requests to the store, if they are counted.
        wait: Sets the time in seconds before each answer of the store.
        quick: True makes few batches, and little state.
    """

    def __init__(self, site: Site, requests: Requests, wait: Callable[[float], None], *, quick: bool) -> None:
        self.site, self.requests, self.wait = site, requests, wait
        self.batches = 10 if quick else 40
        self.state_rows = 10_000 if quick else 1_000_000

    def ours(self, place: Place) -> Measured:
        """A pipeline whose state has a key for each row: a backlog, idle time, and a checkpoint that is published."""
        found, rows = Measured(), _FEW * self.batches
        self._lose_the_disk(place)
        for number in range(self.batches):
            deliver(place, number * _FEW, _FEW)
        with self._answering(place), self._live(place) as live:
            self._measure_batches(place, live, found)
            self._measure_idle(place, found)
            began = len(self.requests.served)
            tried = live.checkpoint()
            served = [each for each in self.requests.served[began:] if not _WAITING.search(each.path)]
            self._count(found, "a checkpoint", served, 1, 1_000_000)
            found.seconds["a checkpoint"] = sum(step.duration_s for step in tried.steps)
            manifest_s = self._time_of(place, rf"/manifests/{tried.checkpoint}\.json")
            live.until(lambda: self._times(place, r"/tables/kept/_delta_log/0*1\.json"))
            found.seconds["a publication"] = self._time_of(place, r"/tables/kept/_delta_log/0*1\.json") - manifest_s
        published = table(place, "tables/kept").to_pyarrow_table(columns=["id"]).num_rows
        if published != rows:
            raise AssertionError(f"{place.name}: {published} rows are public instead of {rows}")
        return found

    def plain(self, place: Place) -> Measured:
        """The same backlog by a query with Delta's sink and Spark's own classes."""
        found = Measured()
        self._lose_the_disk(place)
        for number in range(self.batches):
            deliver(place, number * _FEW, _FEW)
        session = self.site.spark.newSession()
        session.conf.unset(CHECKPOINT_FILES)
        with self._answering(place):
            frame = _arrivals(session, place).dropDuplicates(["id"])
            query = frame.writeStream.format("delta").option("checkpointLocation", f"{place.root}/checkpoint")
            running = query.start(f"{place.root}/tables/kept")
            try:
                self._measure_batches(place, None, found)
                self._measure_idle(place, found)
            finally:
                running.stop()
        return found

    def restored(self, place: Place) -> list[float]:
        """Returns the seconds from a start without a work directory to its first batch, with the state of many rows, of several starts."""
        self._lose_the_disk(place)
        batches = self._deliver_state(place)
        with self._live(place, "text") as live:
            live.until(lambda: len(self._commits(place)) >= batches and has_snapshots(_on_disk(place)))
            live.checkpoint()
        return [self._start(place, batch) for batch in range(batches, batches + _STARTS)]

    def plain_restored(self, place: Place, objects: Path) -> list[float]:
        """The same by a query with Delta's sink and Spark's own classes, which reads its state from its checkpoint.

        Args:
            place: The place in a store.
            objects: The directory in which the server keeps the objects of the place.
        """
        batches, commits = self._deliver_state(place), objects / "checkpoint" / "commits"
        session = self.site.spark.newSession()
        session.conf.unset(CHECKPOINT_FILES)

        @contextmanager
        def running() -> Iterator[None]:
            frame = _arrivals(session, place).dropDuplicates(["id", "text"])
            query = frame.writeStream.format("delta").option("checkpointLocation", f"{place.root}/checkpoint")
            started = query.start(f"{place.root}/tables/kept")
            try:
                yield
            finally:
                started.stop()

        with running():
            until(lambda: (commits / str(batches - 1)).exists() and has_snapshots(objects), None)
        took_s: list[float] = []
        for batch in range(batches, batches + _STARTS):
            deliver(place, self.state_rows + batch * _FEW, _FEW, payload=True)
            with self._answering(place):
                began_s = time.time()
                with running():
                    until((commits / str(batch)).exists, None)
            took_s.append((commits / str(batch)).stat().st_mtime - began_s)
        return took_s

    def _deliver_state(self, place: Place) -> int:
        """Delivers the rows of a large state, and few later ones. Returns the number of files: each is a batch."""
        part = self.state_rows // BATCHES
        for number in range(BATCHES):
            deliver(place, number * part, part, payload=True)
        for number in range(LATER):
            deliver(place, self.state_rows + number * _FEW, _FEW, payload=True)
        table(place, "arrivals").create_checkpoint()  # as Spark would have made one
        return BATCHES + LATER

    def _start(self, place: Place, batch: int) -> float:
        """Returns the seconds from a start without a work directory to the end of its first batch, which has this number."""
        self._lose_the_disk(place)
        deliver(place, self.state_rows + batch * _FEW, _FEW, payload=True)
        with self._answering(place):
            began_s = time.time()
            with self._live(place, "text") as live:
                live.until(lambda: self._times(place, rf"/checkpoint/commits/{batch}"))
                live.ask(Wanted.CHECKPOINT)
        return self._time_of(place, rf"/checkpoint/commits/{batch}") - began_s

    def _measure_batches(self, place: Place, live: Live | None, found: Measured) -> None:
        until(lambda: len(self._commits(place)) >= self.batches, live)
        commits = self._commits(place)[_WARM:]
        found.seconds["a batch with state"] = median(after - before for before, after in pairwise(commits))
        served = [each for each in self.requests.served if commits[0] < each.at_s <= commits[-1]]
        self._count(found, "a batch", served, 1 / (len(commits) - 1), 1_000_000)

    def _measure_idle(self, place: Place, found: Measured) -> None:
        time.sleep(_IDLE_S / 4)
        began = len(self.requests.served)
        time.sleep(_IDLE_S)
        minutes_a_month = 30 * 24 * 60
        self._count(found, "a minute without rows", self.requests.served[began:], 60 / _IDLE_S, minutes_a_month)

    def _count(self, found: Measured, name: str, served: Sequence[Served], share: float, times: int) -> None:
        reads, writes = (sum(each.method in kind for each in served) for kind in (_READS, _WRITES))
        found.requests[name] = (reads + writes) * share
        found.price[name] = (reads * 0.0004 + writes * 0.005) / 1_000 * share * times

    def _live(self, place: Place, key: str = "id") -> Live:
        pipeline = Pipeline("benchmark", checkpoint=CheckpointSettings(interval="1 hour"))

        def arrivals(spark: SparkSession) -> DataFrame:
            return _arrivals(spark, place)

        def kept(arrivals: DataFrame) -> DataFrame:
            return arrivals.dropDuplicates(["id", key])

        pipeline.source(bounded=False)(arrivals)
        pipeline.stage(sink=DeltaSink(f"{place.root}/tables/kept"))(kept)
        return Live(self.site, pipeline, f"{place.root}/home", **place.options())

    @contextmanager
    def _answering(self, place: Place) -> Iterator[None]:
        """The store waits before each answer while the context is open."""
        self.wait(place.latency_s)
        try:
            yield
        finally:
            self.wait(0.0)

    def _commits(self, place: Place) -> list[float]:
        """Returns the times at which the query has committed its batches."""
        return self._times(place, r"/checkpoint/commits/\d+")

    def _time_of(self, place: Place, path: str) -> float:
        return self._times(place, path)[-1]

    def _times(self, place: Place, path: str) -> list[float]:
        """Returns the times at which the files of the place whose path ends like this were written, ascending."""
        ending = re.compile(f"{path}$")
        found = [each.stat().st_mtime for each in _on_disk(place).rglob("*") if ending.search(str(each))]
        if place.is_store:
            below = f"/{urlsplit(place.root).netloc}{urlsplit(place.root).path}/"
            served = list(self.requests.served)
            found += [
                each.at_s for each in served if each.method == "PUT" and each.path.startswith(below) and ending.search(each.path)
            ]
        return sorted(found)

    def _lose_the_disk(self, place: Place) -> None:
        remove(Path(os.environ["XDG_CACHE_HOME"]) if place.is_store else Path(place.root) / "home" / "work")


def _on_disk(place: Place) -> Path:
    """Returns the directory with everything that a place has on the disk of the driver."""
    return Path(os.environ["XDG_CACHE_HOME"]) if place.is_store else Path(place.root)


def _arrivals(spark: SparkSession, place: Place) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(f"{place.root}/arrivals")


def deliver(place: Place, first: int, rows: int, *, payload: bool = False) -> None:
    """Appends rows to the source, in one file."""
    ids = range(first, first + rows)
    texts = [os.urandom(_PAYLOAD_BYTES).hex() if payload else f"row {number}" for number in ids]
    data = pa.table({"id": pa.array(ids, pa.int64()), "text": texts})
    write_deltalake(f"{place.root}/arrivals", data, mode="append", storage_options=_options(place))


def table(place: Place, name: str) -> DeltaTable:
    return DeltaTable(f"{place.root}/{name}", storage_options=_options(place))


def _options(place: Place) -> dict[str, str] | None:
    return S3Settings.from_environment(os.environ).for_delta_rs() if place.is_store else None


def until(condition: Callable[[], object], live: Live | None) -> None:
    """Waits, also for the pipeline to fail."""
    if live is not None:
        live.until(condition)
        return
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError("it did not happen")
        time.sleep(_LOOK_S)


def measured(lives: Lives, directory: Path, store: str, tell: Tell) -> Iterator[Figure]:
    """The figures of lives. Each place has a life of its own, and each latency a plain query."""

    def told(what: str, place: Place) -> Place:
        tell(f"in stores: {what}, {place.name}")
        return place

    places = {name: Place(name, f"{store}/{name.replace(' ', '-')}", latency_s) for name, latency_s in _LATENCIES.items()}
    lives.ours(told("warming up", Place("in directories", str(directory / "warm"))))
    on_disk = lives.ours(told("a life", Place("in directories", str(directory / "life"))))
    for name, place in places.items():
        ours = lives.ours(told("a life", place))
        plain = lives.plain(told("writeStream", Place(name, f"{place.root}-plain", place.latency_s)))
        work = Place(f"{name}, work directory in S3", f"{place.root}-work", place.latency_s, f"{place.root}-work/work")
        on_cluster = lives.ours(told("a life", work))
        batch = "a batch with state"
        yield Figure(BATCH, name, [ours.seconds[batch]], [plain.seconds[batch]], 1.0)
        yield Figure(BATCH, work.name, [on_cluster.seconds[batch]], [plain.seconds[batch]], 1.0)
        for what, took_s in ours.seconds.items():
            yield Figure(STORE, f"{what}, {name}", [took_s], [on_disk.seconds[what]])
            yield Figure(STORE, f"{what}, {work.name}", [on_cluster.seconds[what]], [on_disk.seconds[what]])
        if place.latency_s:
            continue
        for way, found in ((name, ours), (work.name, on_cluster)):
            for what, count in plain.requests.items():
                layout = way.removeprefix(f"{name}, ") if way != name else "work directory on the driver's disk"
                yield Figure(REQUESTS, f"{what}, {layout}", [found.requests[what]], [count])
                often = "a million batches" if what == "a batch" else "a month without rows"
                yield Figure(PRICE, f"{often}, {layout}", [found.price[what]], [plain.price[what]])
        checkpoint = "a checkpoint"
        yield Figure(CHECKPOINT_REQUESTS, checkpoint, [on_cluster.requests[checkpoint]], [ours.requests[checkpoint]])
        yield Figure(CHECKPOINT_PRICE, "a million checkpoints", [on_cluster.price[checkpoint]], [ours.price[checkpoint]])


def all_lives(directory: Path, tell: Tell, *, quick: bool) -> Iterator[Figure]:
    requests = Requests()
    with object_store(requests=requests) as store:
        site = Site(directory, jars(S3_JARS))
        lives = Lives(site, requests, partial(setattr, requests, "latency_s"), quick=quick)
        yield from measured(lives, directory, store, tell)
        site.spark.stop()


def all_restores(directory: Path, tell: Tell, *, quick: bool) -> Iterator[Figure]:
    with (
        versitygw(directory / "store") as store,
        slow_line(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0) as (port, wait),
        s3_environment(f"http://127.0.0.1:{port}"),
    ):
        site = Site(directory, jars(S3_JARS))
        lives, small = (Lives(site, Requests(), wait, quick=is_quick) for is_quick in (quick, True))
        tell("in stores: warming up")
        small.restored(Place("warm", f"{store}/warm"))
        tell("a restore in directories")
        on_disk_s = lives.restored(Place("in directories", str(directory / "restored")))
        for name, latency_s in _LATENCIES.items():
            tell(f"a restore from S3, {name}")
            place = Place(name, f"{store}/{name.replace(' ', '-')}", latency_s)
            found_s = lives.restored(place)
            what = f"{'10 MB' if quick else '1 GB'}, {name}"
            yield Figure(RESTORE, what, found_s, on_disk_s, 0.5)
            tell(f"a restore of writeStream, {name}")
            plain = replace(place, root=f"{place.root}-plain")
            objects = directory / "store" / urlsplit(plain.root).netloc / urlsplit(plain.root).path.lstrip("/")
            yield Figure(RESTART, what, found_s, lives.plain_restored(plain, objects))
        site.spark.stop()


def main(directory: Path, what: str, *, quick: bool) -> None:
    def say(**what: object) -> None:
        print(json.dumps(what), flush=True)

    figures = {"lives": all_lives, "restores": all_restores}[what]
    for figure in figures(directory, lambda doing: say(tell=doing), quick=quick):
        say(figure=figure.to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], quick=sys.argv[3] == "quick")
