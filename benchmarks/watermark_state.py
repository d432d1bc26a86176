"""Measures the cost of holding a watermark back until a bounded input has ended: the state that is kept meanwhile."""

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.site import Input, Outcome, Site
from spark_jobs import DeltaSink, Pipeline

ROWS = Kind("peak state", "rows of state after a batch, the most", Better.LESS, "held back", "delayed by 10 minutes")
MEMORY = Kind(
    "peak state in memory", "MiB of state after a batch, the most, as Spark counts it", Better.LESS, ROWS.ours, ROWS.plain
)
_MIB = 2**20


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Windows of ten minutes and a key, over an input in order of time: held back without a delay, and moving with one.

    One turn each: the same input leaves the same state, however busy the machine is.
    """
    files, rows = (6, 3_600) if quick else (20, 36_000)
    source = site.input("in-order", files, rows)
    found = []
    for what, delay in (("held back", None), ("delayed", "10 minutes")):
        tell(f"peak state: {what}")
        found.append(_run(site, source, delay))
    held, delayed = found
    name = f"{files} batches of {rows // 3_600} h, 60 keys, {source.rows:,} rows"
    yield Figure(ROWS, name, [held.state_rows], [delayed.state_rows])
    yield Figure(MEMORY, name, [held.state_bytes / _MIB], [delayed.state_bytes / _MIB])


def _run(site: Site, source: Input, delay: str | None) -> Outcome:
    directory = site.new()
    outcome = site.run(windows(source, directory, delay), directory)
    expected, found = _windows(site, source), site.rows(directory / "windows")
    if found != expected:
        raise AssertionError(f"{found} windows instead of {expected}")
    return outcome


def windows(source: Input, directory: Path, delay: str | None) -> Pipeline:
    """Counts rows by window and key; without a delay the watermark is held back until the input has ended."""
    pipeline = Pipeline("windows")

    @pipeline.source(bounded=True, event_time="at", watermark_delay=delay)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

    @pipeline.stage(sink=DeltaSink(str(directory / "windows")), name="windows")
    def windows(rows: DataFrame) -> DataFrame:
        return windowed(rows)

    return pipeline


def windowed(frame: DataFrame) -> DataFrame:
    """The work, on a stream or on a batch frame."""
    counts = frame.groupBy(F.window("at", "10 minutes").alias("window"), (F.col("id") % 60).alias("number")).agg(
        F.count("*").alias("rows")
    )
    return counts.select("number", "rows", F.col("window.start").alias("start"))


def _windows(site: Site, source: Input) -> int:
    """The independent answer: the same windows by a batch query."""
    return windowed(site.spark.read.format("delta").load(str(source.path))).count()
