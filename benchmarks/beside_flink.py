"""The same jobs on Flink: a bounded one with three tables, small and large, and one without an end.

Flink has an environment of its own, and ``FLINK_PYTHON`` names its Python.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.freshness import delays, public_versions, share_of
from benchmarks.live import Live, remove
from benchmarks.site import Site
from scripts.fetch_service_jars import fetched
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline

BOUNDED = Kind(
    "bounded jobs beside Flink", "seconds a process, from its start to its end", Better.LESS, "spark-jobs run", "Flink"
)
LIVE = Kind("freshness beside Flink", "seconds from a row's file to its public table", Better.LESS, "a pipeline", "Flink")
_JOB, _PIPELINE = Path(__file__).with_name("flink_job.py"), Path(__file__).with_name("three_tables.py")
_PARQUET = "org.apache.flink:flink-sql-parquet:2.3.0"
_WEEK_S, _SHUFFLED_S, _USERS, _BEGINS_S = 604_200, 600, 100_000, 1_772_410_200


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Both write Parquet. Ours is a Delta table, Flink's a directory of files."""
    python = os.environ.get("FLINK_PYTHON")
    if python is None:
        tell("Flink is left out: FLINK_PYTHON names no Python with apache-flink")
        return
    flink = Flink(python)
    for rows, files, turns in ((100_000, 10, 1 if quick else 3), *(() if quick else ((10_000_000, 20, 2),))):
        yield _bounded(site, flink, rows, files, turns, tell)
    yield _next_run(site, flink, 100_000, 10, 1 if quick else 3, tell)
    for interval_s in (1,) if quick else (1, 5, 10):
        found = {}
        for name, delays_s in (("ours", _ours_live), ("Flink", partial(_flink_live, flink))):
            tell(f"{LIVE.name}: an interval of {interval_s} s, {name}")
            found[name] = delays_s(site, interval_s)
        for share in ("median", "95th percentile"):
            ours, flinks = (share_of(share, found[name]) for name in ("ours", "Flink"))
            yield Figure(LIVE, f"interval {interval_s} s: {share}", [ours], [flinks])


class Flink:
    """Flink with a Python of its own, and with Spark's classes of Hadoop."""

    def __init__(self, python: str) -> None:
        self._python = python
        hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
        self._jars = ";".join(path.as_uri() for path in [*hadoop, *fetched(_PARQUET)])

    def command(self, kind: str, source: Path, output: Path, interval_s: int) -> list[str]:
        return [self._python, str(_JOB), kind, str(source), str(output), f"{interval_s} s", self._jars]


def _bounded(site: Site, flink: Flink, rows: int, files: int, turns: int, tell: Tell) -> Figure:
    source = _written(site.directory / f"events-{rows}", rows, files)

    def ours() -> float:
        output = site.new()
        took_s = _run_s(source, output)
        _check(site, "delta", output, rows)
        return took_s

    name = f"{rows:,} rows in {files} files, three tables"
    plain = partial(_flink_s, site, flink, source, rows)
    return measured_in_turn(BOUNDED, name, ours=ours, plain=plain, turns=turns, tell=tell, warm=False)


def _next_run(site: Site, flink: Flink, rows: int, files: int, turns: int, tell: Tell) -> Figure:
    """The second run in a home, which has as many rows of the week after. Flink reads only these."""
    weeks = [_written(site.directory / f"week-{week}", rows, files, week) for week in (0, 1)]

    def ours() -> float:
        output = site.new()
        source = output / "events"
        source.mkdir()
        _arrive(weeks[0], source)
        _run_s(source, output, "--on-end=suspend")
        _arrive(weeks[1], source)
        took_s = _run_s(source, output, "--on-end=drain")
        _check(site, "delta", output, 2 * rows)
        return took_s

    name = f"the next run: {rows:,} more rows in {files} files"
    plain = partial(_flink_s, site, flink, weeks[1], rows)
    return measured_in_turn(BOUNDED, name, ours=ours, plain=plain, turns=turns, tell=tell, warm=False)


def _arrive(week: Path, source: Path) -> None:
    for path in week.iterdir():
        (source / f"{week.name}-{path.name}").hardlink_to(path)


def _run_s(source: Path, output: Path, *options: str) -> float:
    """Returns the duration of a run with its home and its tables in a directory."""
    places = [f"--home={output}/home", f"--param=source={source}", f"--param=output={output}"]
    return _process_s([sys.executable, "-m", "spark_jobs", "run", str(_PIPELINE), *places, *options])


def _flink_s(site: Site, flink: Flink, source: Path, rows: int) -> float:
    """Returns the duration of Flink's job with these rows."""
    output = site.new()
    took_s = _process_s(flink.command("bounded", source, output, 10))
    _check(site, "parquet", output, rows)
    return took_s


def _check(site: Site, kind: str, output: Path, rows: int) -> None:
    """Removes tables that have all rows."""
    for table in ("hourly", "users"):
        (found,) = site.spark.read.format(kind).load(f"{output}/{table}").groupBy().sum("n").collect()
        if found[0] != rows:
            raise AssertionError(f"{output}/{table} counts {found[0]} rows of {rows}")
    remove(output)


def _written(directory: Path, rows: int, files: int, week: int = 0) -> Path:
    """Writes a week of events, whose times are up to ten minutes out of order."""
    directory.mkdir()
    random, share = np.random.default_rng(7), rows // files
    for number in range(files):
        ids = np.arange(number * share, (number + 1) * share)
        at_s = _BEGINS_S + week * _WEEK_S + ids * (_WEEK_S / rows) - random.uniform(0, _SHUFFLED_S, share)
        columns = {
            "id": ids,
            "user": random.integers(0, _USERS, share, dtype=np.int32),
            "at": pa.array((at_s * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
            "amount": random.uniform(0, 1_000, share).round(2),
        }
        pq.write_table(pa.table(columns), directory / f"part-{number:04}.parquet")
    return directory


def _process_s(command: Sequence[str]) -> float:
    """Returns the duration of a process.

    Raises:
        RuntimeError: It failed; the message is what it printed.
    """
    began_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-4_000:]}")
    return took_s


def _ours_live(site: Site, interval_s: int) -> list[float]:
    """Returns the delay of each file in seconds."""
    directory = site.new()
    source = directory / "arriving"
    source.mkdir()
    pipeline = Pipeline("beside_flink", checkpoint=CheckpointSettings(interval=f"{interval_s} seconds"))

    @pipeline.source(bounded=False)
    def arriving(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id LONG, user INT").json(str(source))

    @pipeline.stage(sink=DeltaSink(str(directory / "copy")))
    def copy(arriving: DataFrame) -> DataFrame:
        return arriving

    with Live(site, pipeline, directory / "home") as live:
        live.until(live.runs)
        return delays(source, {"copy": partial(public_versions, directory / "copy")}, interval_s).by_table_s["copy"]


def _flink_live(flink: Flink, site: Site, interval_s: int) -> list[float]:
    directory = site.new()
    source = directory / "arriving"
    source.mkdir()
    with _running(flink.command("live", source, directory, interval_s)), Appearing(directory / "copy") as copy:
        return delays(source, {"copy": copy.newest}, interval_s).by_table_s["copy"]


@contextmanager
def _running(command: Sequence[str]) -> Iterator[None]:
    """Runs a command and all that it starts until the context ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Appearing:
    """Records when Parquet files appear in a directory while the context is open."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._seen, self._ended = directory, dict[Path, float](), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Appearing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def newest(self) -> list[tuple[int, float]]:
        """Returns the highest id up to each file, and when the file appeared."""
        highest, found = -1, []
        for path, at_s in sorted(self._seen.items(), key=lambda seen: seen[1]):
            highest = max(highest, pq.read_table(path, columns=["id"])["id"].to_numpy().max())
            found.append((int(highest), at_s))
        return found

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            if self._directory.exists():
                for path in self._directory.iterdir():
                    if path.is_file() and not path.name.startswith((".", "_")):
                        self._seen.setdefault(path, time.time())
