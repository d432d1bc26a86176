"""Compares a Spark Declarative Pipelines project as ``spark-jobs run`` and as ``spark-pipelines run`` run it, each as a process of its own.

The project has what both can do with Delta: a streaming table in Python, one in SQL that reads it, and a materialized view.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn
from benchmarks.site import COLD_SETTINGS, Site
from benchmarks.spark_pipelines import catalog_settings, run_spark_pipelines

RUNS = Kind(
    "declarative projects", "seconds a process, from its start to its end", Better.LESS, "spark-jobs run", "spark-pipelines run"
)
APART = Kind(
    "publication of declarative projects",
    "seconds in which some tables have the rows of a run and others do not: from the first commit to the last",
    Better.LESS,
    "spark-jobs run",
    "spark-pipelines run",
)
TABLES = ("orders", "large", "totals")
_SPECIFICATION = """
name: shop
storage: {storage}
libraries: [{{glob: {{include: transformations/**}}}}]
"""
_ORDERS = """
from pyspark import pipelines as dp


@dp.table
def orders():
    rows = spark.readStream.schema("id LONG, key LONG, value DOUBLE, text STRING, at TIMESTAMP")
    return rows.parquet(spark.conf.get("shop.incoming")).where("value > 0.1")
"""
_REST = """
CREATE STREAMING TABLE large AS SELECT * FROM STREAM orders WHERE value > 0.9;
CREATE MATERIALIZED VIEW totals AS SELECT key, count(*) AS n, sum(value) AS value FROM orders GROUP BY key;
"""


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Two runs of one project: over all rows, and over the rows that have come since."""
    rows, turns = 20_000 if quick else 200_000, 1
    parts = site.directory / "declarative-rows"
    source = site.input("declarative", 9, rows // 8)
    site.spark.read.format("delta").load(str(source.path)).repartition(9).write.parquet(str(parts))
    files = sorted(parts.glob("*.parquet"))
    numbers = count()
    projects: dict[str, list[_Project]] = {"ours": [], "plain": []}

    def first(way: str) -> float:
        projects[way].append(_Project(site.directory / f"declarative-{way}-{next(numbers)}", way))
        return projects[way][-1].run(files[:8])

    def following(way: str) -> float:
        project = next(project for project in projects[way] if len(project.apart_s) == 1)
        took_s = project.run(files[8:])
        project.check(site.spark.read.parquet(*map(str, files)).where("value > 0.1").count())
        return took_s

    ways = ("ours", "plain")
    name = f"{len(TABLES)} tables, {rows:,} rows in 8 files"
    firsts = in_turn("declarative, first run", {way: partial(first, way) for way in ways}, turns, tell, warm=False)
    nexts = in_turn("declarative, next run", {way: partial(following, way) for way in ways}, turns, tell, warm=False)
    yield Figure(RUNS, f"the first run: {name}", firsts["ours"], firsts["plain"])
    yield Figure(RUNS, "the next run: one more file", nexts["ours"], nexts["plain"])
    apart = {way: [project.apart_s[0] for project in projects[way]] for way in ways}
    yield Figure(APART, f"the first run: {name}", apart["ours"], apart["plain"])
    for project in (*projects["ours"], *projects["plain"]):
        shutil.rmtree(project.directory, ignore_errors=True)


@dataclass
class _Project:
    """A project with its tables and its input, in a directory of its own."""

    directory: Path
    way: str
    apart_s: list[float] = field(default_factory=list)
    """For each run, the time between the first and the last commit with rows."""

    @property
    def entry(self) -> Path:
        return self.directory / "project" / "spark-pipeline.yml"

    def run(self, files: list[Path]) -> float:
        """Delivers files, and runs the project. Returns the duration of the process.

        Raises:
            RuntimeError: It failed; the message is what it printed.
        """
        incoming = self.directory / "incoming"
        if not self.entry.exists():
            (self.entry.parent / "transformations").mkdir(parents=True)
            incoming.mkdir()
            (self.directory / "storage").mkdir()
            storage = (self.directory / "storage").as_uri()
            settings = {"shop.incoming": str(incoming)}
            if self.way == "ours":
                settings |= {**COLD_SETTINGS, **catalog_settings(self.directory)}
            configuration = f"configuration: {json.dumps(settings)}\n"
            self.entry.write_text(_SPECIFICATION.format(storage=storage) + configuration)
            (self.entry.parent / "transformations" / "orders.py").write_text(_ORDERS)
            (self.entry.parent / "transformations" / "rest.sql").write_text(_REST)
        for file in files:
            shutil.copy(file, incoming / f"{len(list(incoming.iterdir()))}.parquet")
        began, began_s = time.time(), time.monotonic()
        if self.way == "ours":
            command = [sys.executable, "-m", "spark_jobs", "run", str(self.entry), "--home", str(self.directory / "home")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        else:
            done = run_spark_pipelines(self.entry, self.directory, COLD_SETTINGS)
        took_s = time.monotonic() - began_s
        if done.returncode:
            raise RuntimeError(f"{self.entry} failed ({self.way}): {(done.stdout + done.stderr)[-6_000:]}")
        self.apart_s.append(self._apart_s(began))
        return took_s

    def check(self, rows: int) -> None:
        """Refuses tables that do not have the rows of all files."""
        orders, totals = (DeltaTable(str(self._table(name))).to_pyarrow_table() for name in ("orders", "totals"))
        found = (orders.num_rows, sum(totals["n"].to_pylist()))
        if found != (rows, rows):
            raise AssertionError(f"{self.way}: {found} rows instead of {rows}")

    def _apart_s(self, began: float) -> float:
        """Returns the time from the first commit with rows since ``began`` to the last one."""
        times = []
        for name in TABLES:
            for log in sorted((self._table(name) / "_delta_log").glob("*.json")):
                lines = [json.loads(line) for line in log.read_text().splitlines()]
                if log.stat().st_mtime >= began and any("add" in line for line in lines):
                    times.append(log.stat().st_mtime)
        return max(times) - min(times)

    def _table(self, name: str) -> Path:
        return self.directory / "warehouse" / name
