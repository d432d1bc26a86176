"""A pipeline that runs: what checkpoints cost it, and what it does in the time of bare streaming queries."""

import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site, work
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpoint_requests import Wanted

STALL = Kind("checkpoints while it runs", "rows a second", Better.MORE, "a checkpoint every two seconds", "none")
STEADY = Kind("running stages", "rows a second", Better.MORE, "two stages", "two queries with Delta's sink")
_ROWS_A_FILE = 200_000


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A backlog is read file by file, by two stages in a row that run side by side."""
    turns, files = (1, 20) if quick else (3, 60)
    arrivals = Arrivals(site, site.directory / "backlog")
    arrivals.add(files * _ROWS_A_FILE, files)
    name = f"two stages, {arrivals.rows:,} rows in {files} batches"
    yield measured_in_turn(
        STALL,
        name,
        ours=lambda: _ours(site, arrivals, "2 seconds"),
        plain=lambda: _ours(site, arrivals, "1 hour"),
        turns=turns,
        tell=tell,
        goal=0.99,
    )
    yield measured_in_turn(
        STEADY,
        name,
        ours=lambda: _ours(site, arrivals, "10 seconds"),
        plain=lambda: _plain(site, arrivals),
        turns=turns,
        tell=tell,
        goal=1.0,
    )
    remove(arrivals.path)


def pipeline_of(arrivals: Arrivals, directory: Path, interval: str) -> Pipeline:
    """Two stages in a row, each with a table."""
    pipeline = Pipeline("benchmark", checkpoint=CheckpointSettings(interval=interval))
    read(pipeline, arrivals, files_per_trigger=1)
    pipeline.stage(sink=DeltaSink(str(directory / "first")), name="first", inputs={"frame": "arrivals"})(_with_value)
    pipeline.stage(sink=DeltaSink(str(directory / "second")), name="second", inputs={"frame": "first"})(work)
    return pipeline


def _with_value(frame: DataFrame) -> DataFrame:
    return frame.withColumn("value", F.col("id") * 1.0)


def _ours(site: Site, arrivals: Arrivals, interval: str) -> float:
    directory = site.new()
    with Live(site, pipeline_of(arrivals, directory, interval), directory / "home") as live:
        live.until(live.runs)
        took_s = live.until(lambda: live.has_read("second", arrivals.rows))
        live.ask(Wanted.CHECKPOINT)
    if site.rows(directory / "second") != arrivals.rows:
        raise AssertionError(f"{directory} has other rows")
    remove(directory)
    return arrivals.rows / took_s


def _plain(site: Site, arrivals: Arrivals) -> float:
    directory, session = site.new(), site.spark.newSession()
    began_s, queries, source = time.monotonic(), [], str(arrivals.path)
    for name in ("first", "second"):
        stream = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source)
        frame = work(stream) if name == "second" else _with_value(stream)
        table = str(directory / name)
        writer = frame.writeStream.format("delta").option("checkpointLocation", str(directory / f"checkpoint-{name}"))
        queries.append(writer.start(table))
        while name == "first" and not queries[0].recentProgress:  # the second needs a table to read
            time.sleep(0.05)
        source = table
    while sum(progress.numInputRows for progress in queries[1].recentProgress) < arrivals.rows:
        time.sleep(0.005)
    took_s = time.monotonic() - began_s
    for query in queries:
        query.stop()
    remove(directory)
    return arrivals.rows / took_s
