"""A pipeline that runs: what checkpoints cost it, and what it does in the time of bare streaming queries."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn, measured_in_turn
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site, work
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpoint_requests import Wanted

STALL = Kind("checkpoints while it runs", "rows a second", Better.MORE, "with checkpoints", "without")
STEADY = Kind("running stages", "rows a second", Better.MORE, "two stages", "two queries with Delta's sink")
_ROWS_A_FILE = 200_000
_BY_DEFAULT_S = 60.0


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A backlog is read file by file, by two stages in a row that run side by side."""
    turns, files = (1, 20) if quick else (3, 40)
    arrivals = Arrivals(site, site.directory / "backlog")
    arrivals.add(files * _ROWS_A_FILE, files)
    name = f"two stages, {arrivals.rows:,} rows in {files} batches"
    yield from _stalls(site, arrivals, name, turns, tell)
    yield measured_in_turn(
        STEADY,
        name,
        ours=lambda: arrivals.rows / _ours(site, arrivals, CheckpointSettings(interval="10 seconds"))[0],
        plain=lambda: _plain(site, arrivals),
        turns=turns,
        tell=tell,
        goal=1.0,
    )
    remove(arrivals.path)


def _stalls(site: Site, arrivals: Arrivals, name: str, turns: int, tell: Tell) -> Iterator[Figure]:
    """Checkpoints so often that their cost can be seen, and what it comes to at the interval that they have by default."""
    ways = {
        "aligned": CheckpointSettings(interval="2 seconds", aligned_timeout="never"),
        "unaligned": CheckpointSettings(interval="2 seconds", unaligned=True),
        "none": CheckpointSettings(interval="1 hour"),
    }
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}

    def measure(way: str) -> float:
        found[way].append(_ours(site, arrivals, ways[way]))
        return found[way][-1][0]

    measured = in_turn(f"{STALL.name}: {name}", {way: partial(measure, way) for way in ways}, turns, tell)
    without = [arrivals.rows / took_s for took_s in measured["none"]]
    for way in ("aligned", "unaligned"):
        yield Figure(STALL, f"{way}, every two seconds; {name}", [arrivals.rows / took_s for took_s in measured[way]], without)
        by_default = [
            arrivals.rows / (none_s * (1 + (took_s - none_s) / checkpoints / _BY_DEFAULT_S))
            for (took_s, checkpoints), none_s in zip(found[way][-turns:], measured["none"], strict=True)
        ]
        yield Figure(STALL, f"{way}, what these come to at one a minute; {name}", by_default, without, 0.99)


def pipeline_of(arrivals: Arrivals, directory: Path, checkpoint: CheckpointSettings) -> Pipeline:
    """Two stages in a row, each with a table."""
    pipeline = Pipeline("benchmark", checkpoint=checkpoint)
    read(pipeline, arrivals, files_per_trigger=1)
    pipeline.stage(sink=DeltaSink(str(directory / "first")), name="first", inputs={"frame": "arrivals"})(_with_value)
    pipeline.stage(sink=DeltaSink(str(directory / "second")), name="second", inputs={"frame": "first"})(work)
    return pipeline


def _with_value(frame: DataFrame) -> DataFrame:
    return frame.withColumn("value", F.col("id") * 1.0)


def _ours(site: Site, arrivals: Arrivals, checkpoint: CheckpointSettings) -> tuple[float, int]:
    """The seconds until all is read, and how many checkpoints were taken meanwhile."""
    directory = site.new()
    with Live(site, pipeline_of(arrivals, directory, checkpoint), directory / "home") as live:
        live.until(live.runs)
        took_s = live.until(lambda: live.has_read("second", arrivals.rows))
        checkpoints = len(live.store.history())
        live.ask(Wanted.CHECKPOINT)
    if site.rows(directory / "second") != arrivals.rows:
        raise AssertionError(f"{directory} has other rows")
    remove(directory)
    return took_s, checkpoints


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
