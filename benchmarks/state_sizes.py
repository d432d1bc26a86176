"""Measures operations whose cost depends on the size of the state: checkpoints, savepoints, and every restart after a failure."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.ids import StageName

CHECKPOINT = Kind("checkpoints of state", "seconds from the cut to the manifest", Better.LESS, "after 1 % more rows", "the first")
SAVEPOINT = Kind("a stop by state", "seconds from the request", Better.LESS, "so much state", "the least")
RESTORE = Kind(
    "a start from a savepoint", "seconds from the start to the first new batch", Better.LESS, "in other partitions", "as it was"
)
WAY_BACK = Kind("the way back", "seconds to the first new batch", Better.LESS, "ours", "a plain application, started again")
_FAILS = "benchmark.fails"
_FEW = 1_000
BATCHES = 10
"""So many bring the state,"""
LATER = 12
"""and so many small ones come after them: of a state of some age Spark has a snapshot, and what was changed since is little. It makes one
every ten batches."""


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """One pipeline a size, whose state is built once; then everything is done with it, one after the other."""
    sizes = {"10 MB": 10_000} if quick else {"10 MB": 10_000, "100 MB": 100_000, "1 GB": 1_000_000}
    measured = {}
    for name, rows in sizes.items():
        life = Life(site, rows, lambda what, name=name: tell(f"{name} of state: {what}"))  # type: ignore[misc]
        measured[name] = life.measure()
    least = next(iter(measured.values()))
    for name, found in measured.items():
        yield Figure(CHECKPOINT, name, [found["incremental"]], [found["full"]])
        if found is not least:
            yield Figure(SAVEPOINT, f"the savepoint exists, {name}", [found["savepoint"]], [least["savepoint"]])
            yield Figure(SAVEPOINT, f"the pipeline has ended, {name}", [found["stopped"]], [least["stopped"]])
        yield Figure(RESTORE, f"{name}, from 2 to 4", [found["rescaled"]], [found["restored"]])
        for way in ("one stage alone", "in place", "local copy", "home"):
            yield Figure(WAY_BACK, f"{way}, {name}", [found[way]], [found["plain"]], 10.0 if way == "one stage alone" else None)


@dataclass
class Life:
    """A pipeline with a certain amount of state, and what is done to it.

    Args:
        site: Where.
        rows: Of a kilobyte each, all of which its state keeps.
        tell: Told what is going on.
    """

    site: Site
    rows: int
    tell: Tell
    found: dict[str, float] = field(default_factory=dict)

    def measure(self) -> dict[str, float]:
        """Every number, in seconds, by its name."""
        self.directory = self.site.new()
        self.home = self.directory / "home"
        self.arrivals = Arrivals(self.site, self.directory / "arrivals", payload=True)
        self.tell("its input is written")
        self.arrivals.add(self.rows, BATCHES)
        self.arrivals.add(_FEW, LATER)
        self._first_life()
        for way, lost in (("in place", None), ("local copy", "mark"), ("home", "work")):
            self._back(way, lost)
        self._stop_and_restore()
        self.found["plain"] = self._plain()
        remove(self.directory)
        return self.found

    def _pipeline(self, tables: str = "tables") -> Pipeline:
        pipeline = Pipeline(
            "benchmark",
            checkpoint=CheckpointSettings(interval="1 hour"),
            restart=RestartStrategy.fixed_delay(attempts=10, delay="0 seconds"),
        )
        read(pipeline, self.arrivals, files_per_trigger=1)
        pipeline.stage(sink=DeltaSink(str(self.directory / tables / "kept")), name="kept")(kept)
        return pipeline

    def _first_life(self) -> None:
        with Live(self.site, self._pipeline(), self.home) as live:
            self.tell("it is built")
            live.until(lambda: live.has_read("kept", self.arrivals.rows) and has_snapshots(self.home))
            self.tell("the first checkpoint")
            self.found["full"] = sum(each.duration_s for each in live.checkpoint().steps)
            self.arrivals.add(max(self.rows // 100, 1))
            live.until(lambda: live.has_read("kept", self.arrivals.rows))
            self.tell("an incremental checkpoint")
            self.found["incremental"] = sum(each.duration_s for each in live.checkpoint().steps)
            self.tell("a stage fails")
            before = live.batches("kept")
            self.site.spark.sql(f"SELECT reflect('java.lang.System', 'setProperty', '{_FAILS}', 'true')").collect()
            self.arrivals.add(_FEW)
            self.found["one stage alone"] = live.until(lambda: live.batches("kept") > before)
            live.until(lambda: live.status is not None and live.status.stages[StageName("kept")].restarts == 1)

    def _back(self, way: str, lost: str | None) -> None:
        """Another attempt, with new rows for its first batch."""
        self.tell(f"the way back: {way}")
        if lost == "work":
            remove(self.home / "work")
        elif lost == "mark":  # a half-built directory is not continued, but its files are there
            for work in filter(Path.is_dir, (self.home / "work").iterdir()):
                (work / "restoring.json").write_bytes(b"{}")
        self.arrivals.add(_FEW)
        with Live(self.site, self._pipeline(), self.home) as live:
            self.found[way] = self._first_batch_s(live)
            live.ask(Wanted.CHECKPOINT)

    def _first_batch_s(self, live: Live) -> float:
        live.until(lambda: live.has_read("kept", 1))
        return time.monotonic() - live.began_s

    def _stop_and_restore(self) -> None:
        saved = self.directory / "savepoint"
        with Live(self.site, self._pipeline(), self.home) as live:
            live.until(live.runs)
            self.tell("a stop")
            began_s = time.monotonic()
            _, stopped_s = live.ask(Wanted.STOP, target=saved)
            self.found["savepoint"] = stopped_s
            live.ended()
            self.found["stopped"] = time.monotonic() - began_s
        for name, partitions in (("restored", None), ("rescaled", 4)):
            self.tell(f"a start from the savepoint: {name}")
            self.arrivals.add(_FEW)
            fork = self._pipeline(name)
            home = self.directory / f"home-{name}"
            with Live(self.site, fork, home, restore=saved, state_partitions=partitions) as live:
                self.found[name] = self._first_batch_s(live)
            remove(home)
            remove(self.directory / name)

    def _plain(self) -> float:
        """A script with the same query: it builds the state, is killed once it has nothing to do, and is started again.

        Not in the middle of a batch: Delta's sink leaves out one whose rows it has, and Spark then fails for good, as its state has none.
        """
        self.tell("a plain application builds it")
        self._plain_s(len(list(self.arrivals.path.glob("*.parquet"))), settle_s=5.0)
        self.arrivals.add(_FEW)
        self.tell("a plain application, started again")
        return self._plain_s(1, settle_s=0.0)

    def _plain_s(self, batches: int, settle_s: float) -> float:
        """From the start of the script to the end of so many batches; then it is killed."""
        checkpoint = self.directory / "plain-checkpoint"
        before, began_s = _commits(checkpoint), time.monotonic()
        places = {"INPUT": self.arrivals.path, "OUTPUT": self.directory / "plain", "CHECKPOINT": checkpoint}
        log = self.directory / "plain.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.live_plain"],
                env=os.environ | {f"LIVE_{name}": str(path) for name, path in places.items()},
                start_new_session=True,
                stdout=output,
                stderr=output,
            )
        while _commits(checkpoint) < before + batches:
            if process.poll() is not None:
                raise RuntimeError(f"the plain application has ended with {process.returncode}: {log.read_text()[-4_000:]}")
            time.sleep(0.005)
        took_s = time.monotonic() - began_s
        time.sleep(settle_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return took_s


def kept(arrivals: DataFrame) -> DataFrame:
    """Keeps every row for good, as its key, and lets none of them through; fails once where somebody has asked for it.

    A batch touches the state of its own rows only: where a window waits for its end each batch looks through all of its state, which has
    nothing to do with what is measured here.
    """
    failure = "cast(reflect('java.net.URI', 'create', '://') as bigint)"  # of no known cause, so a restart may heal it
    told = F.expr(f"if(reflect('java.lang.System', 'clearProperty', '{_FAILS}') = 'true', {failure}, id)")
    rows = arrivals.withColumn("key", told.cast("long")).dropDuplicates(["key", "text"])
    return rows.where(F.rand() > 1).select("key", "text")


def has_snapshots(directory: Path) -> bool:
    """Returns whether Spark has made snapshots of both state partitions with the large state."""
    return len([path for path in directory.rglob("*.zip") if int(path.stem.partition("_")[0]) > BATCHES]) > 1


def _commits(checkpoint: Path) -> int:
    return len([path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()])
