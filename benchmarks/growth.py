"""``python -m benchmarks.growth``: what the n-th thousand of batches costs, in files, bytes, memory and time.

The log alone, with its writer and every fsync, 100,000 batches; and a sample of real batches with Spark and a consumer. A *consumed* log is
followed by a consumer and trimmed by a checkpoint every 10,000 batches; one without a *checkpoint* keeps its segments; a *held back* one
waits for a consumer that has not begun, and cannot be folded.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.site import Site
from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.staged.log_folding import Consumer, fold_consumed, trim
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.storage.local import LocalFiles

RESULTS = Path(__file__).parent / "results"
THOUSAND = 1_000
CHECKPOINT_EVERY = 10_000
KINDS = {
    "consumed": {"begun": True, "checkpoints": True},
    "no checkpoint": {"begun": True, "checkpoints": False},
    "held back": {"begun": False, "checkpoints": False},
}
GROWTH = Kind("growth", "a thousand batches of a private log with a consumer", Better.LESS, "an old log", "a new log")
_SHOWN: Mapping[str, Callable[["Thousand"], float]] = {
    "files": lambda thousand: thousand.files,
    "MB": lambda thousand: thousand.size_bytes / 1e6,
    "MB of the process": lambda thousand: thousand.resident_bytes / 1e6,
    "ms a batch, the median": lambda thousand: thousand.batch_ms,
}
_METADATA = {
    "id": "table",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}),
    "partitionColumns": [],
    "configuration": {},
    "createdTime": 1,
}


@dataclass(frozen=True)
class Thousand:
    """The files and the duration of one thousand batches."""

    log: str
    batches: int
    """So far."""
    files: int
    size_bytes: int
    """Of all files of the log."""
    resident_bytes: int
    """Of this Python process."""
    batch_ms: float
    """The median."""
    slowest_ms: float
    mean_ms: float
    """With the folds in it."""


class _FollowingConsumer(Consumer):
    """Has read everything but the newest two batches, or nothing; no Spark."""

    def __init__(self, log: PrivateLog, begun: bool) -> None:
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "_begun", begun)

    def reads_from(self) -> int:
        log: PrivateLog = self._log  # type: ignore[attr-defined]
        return max(log.latest() - 2, 0) if self._begun else 0  # type: ignore[attr-defined]


def log_alone(name: str, directory: Path, batches: int, *, begun: bool, checkpoints: bool) -> Iterator[Thousand]:
    """Appends batches of two files each, as a stage does."""
    log = PrivateLog(LocalFiles(directory), "log", "file:///data/table")
    log.begin(_METADATA, {"minReaderVersion": 1, "minWriterVersion": 2}, None)
    consumers, process, taken_ms, parent = [_FollowingConsumer(log, begun)], psutil.Process(), [], -1
    for batch in range(batches):
        staged = _staged(batch)
        began_s = time.perf_counter()
        log.read(BatchId(batch))
        log.read(BatchId(batch - 1))
        log.append(staged)
        fold_consumed(log, consumers)
        if checkpoints and (batch + 1) % CHECKPOINT_EVERY == 0:
            trim(log, consumers, BatchId(parent), LocalFiles(directory / "table"), set())
            parent = batch
        taken_ms.append((time.perf_counter() - began_s) * 1_000)
        if (batch + 1) % THOUSAND == 0:
            yield _thousand(name, directory / "log", batch + 1, process, taken_ms)
            taken_ms = []


def with_spark(directory: Path, batches: int) -> Iterator[Thousand]:
    """Real batches: a stage of one row a batch, and a stage that consumes it."""
    site = Site(directory)
    process = psutil.Process()
    source = site.input("rows", batches, 1)
    pipeline = Pipeline("growth")

    @pipeline.source(bounded=True)
    def rows(spark: Any) -> Any:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

    @pipeline.stage
    def first(rows: Any) -> Any:
        return rows

    @pipeline.stage(sink=DeltaSink(str(directory / "second")), max_files_per_trigger=1)
    def second(first: Any) -> Any:
        return first

    pipeline.run(spark=site.spark, home=directory / "home")
    lines = (directory / "home" / "logs" / "1.log").read_text().splitlines()
    for name in ("first", "second"):
        progress = [
            entry["progress"] for line in lines if (entry := json.loads(line)).get("stage") == name and "progress" in entry
        ]
        taken_ms = [float(each["durationMs"]["triggerExecution"]) for each in progress if each["numInputRows"]]
        (log,) = directory.glob(f"home/work/*/stages/{name}/log")
        for end in range(THOUSAND, len(taken_ms) + 1, THOUSAND):
            yield _thousand(f"Spark, {name} stage", log, end, process, taken_ms[end - THOUSAND : end])
    site.spark.stop()


def _staged(batch: int) -> StagedBatch:
    stats = json.dumps({"numRecords": 1_000, "minValues": {"id": batch}, "maxValues": {"id": batch}, "nullCount": {"id": 0}})
    name = f"0123456789abcdef-{batch}-part-0000%d-b3c1b4d8-6a6b-4a7a-9f0e-5a5f7c9a2d11-c000.snappy.parquet"
    add = {"partitionValues": {}, "size": 12_345, "modificationTime": 1, "dataChange": True, "stats": stats}
    return StagedBatch(BatchId(batch), "0" * 64, 2_000, 0, {"events": batch}, tuple(add | {"path": name % n} for n in (0, 1)))


def _thousand(name: str, directory: Path, batches: int, process: psutil.Process, taken_ms: Sequence[float]) -> Thousand:
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return Thousand(
        log=name,
        batches=batches,
        files=len(sizes),
        size_bytes=sum(sizes),
        resident_bytes=process.memory_info().rss,
        batch_ms=median(taken_ms),
        slowest_ms=max(taken_ms),
        mean_ms=sum(taken_ms) / len(taken_ms),
    )


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """The last thousands of many batches against the first of a new log: with a consumer, and a checkpoint every 10,000 batches."""
    batches, turns = (2 if quick else 10) * CHECKPOINT_EVERY, 1 if quick else 3
    old = log_alone("old", site.new(), batches, **KINDS["consumed"])
    for thousand in islice(old, batches // THOUSAND - turns):
        tell(f"{GROWTH.name}: {thousand.batches:,} batches")
    new = log_alone("new", site.new(), batches, **KINDS["consumed"])
    found = [(next(old), next(new)) for _ in range(turns)]
    for name, of in _SHOWN.items():
        yield Figure(GROWTH, f"{name}, after {batches:,} batches", [of(a) for a, _ in found], [of(b) for _, b in found])


def measured(
    directory: Path, logs: Sequence[str], batches: int, spark_batches: int, tell: Callable[[str], None]
) -> Iterator[Thousand]:
    """Every thousand of the logs that are named."""
    for name in logs:
        for thousand in log_alone(name, directory / name, batches, **KINDS[name]):
            tell(f"{name}: {thousand.batches:,} batches")
            yield thousand
    if spark_batches:
        tell(f"Spark: {spark_batches:,} batches")
        yield from with_spark(directory / "spark", spark_batches)


def show(console: Console, found: Sequence[Thousand], every: int) -> None:
    """The table for people: each ``every``-th batch count, and the last of each log."""
    table = Table(title="What the last thousand batches cost", title_justify="left")
    for heading in ("log", "batches", "files", "MB", "process MB", "ms a batch", "mean", "slowest"):
        table.add_column(heading, justify="left" if heading == "log" else "right")
    last = {each.log: each for each in found}
    for each in found:
        if each.batches in (THOUSAND, last[each.log].batches) or each.batches % every == 0:
            sizes = f"{each.size_bytes / 1e6:.1f}", f"{each.resident_bytes / 1e6:.0f}"
            times = f"{each.batch_ms:.2f}", f"{each.mean_ms:.2f}", f"{each.slowest_ms:.0f}"
            table.add_row(each.log, f"{each.batches:,}", f"{each.files:,}", *sizes, *times)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--spark-batches", type=int, default=2_000, help="0: without Spark")
    parser.add_argument("--logs", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--directory", help="where; in memory (/dev/shm) it shows the work without the disk's fsyncs")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="benchmarks-", dir=options.directory) as directory, console.status("") as status:
        found = list(measured(Path(directory), options.logs, options.batches, options.spark_batches, status.update))
    show(console, found, max(options.batches // 5, THOUSAND))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"growth-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    about = {"measured_at": datetime.now(UTC).isoformat(), "machine": platform.machine(), "python": platform.python_version()}
    path.write_text(json.dumps(about | {"thousands": [asdict(each) for each in found]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
