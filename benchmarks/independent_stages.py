"""Three stages that do not read each other, and that wait on Python: in one pipeline, and each in a pipeline of its own."""

import time
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.live import remove
from benchmarks.site import Input, Site
from spark_jobs import DeltaSink, Pipeline

KIND = Kind("independent stages", "seconds for all stages, warm", Better.LESS, "in one pipeline", "one after the other")
_STAGES = ("first", "second", "third")
_ROWS = 500
"""Rows of a file. A batch reads one file, and waits a millisecond for each row."""


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """The other way is three runs, each with one of the stages."""
    files = 3 if quick else 10
    source = site.input("waited-for", files, _ROWS)
    yield measured_in_turn(
        KIND,
        f"3 stages that wait on Python, {files} batches of {_ROWS} ms each",
        ours=lambda: _run_s(site, source, [_STAGES]),
        plain=lambda: _run_s(site, source, [(stage,) for stage in _STAGES]),
        turns=1 if quick else 3,
        tell=tell,
        goal=1.4,
    )


def _run_s(site: Site, source: Input, pipelines: list[tuple[str, ...]]) -> float:
    """Returns the duration of runs of these pipelines, one after the other.

    Args:
        site: The site of the runs.
        source: What each stage reads.
        pipelines: The stages of each pipeline.
    """
    directory = site.new()
    took_s = 0.0
    for number, stages in enumerate(pipelines):
        pipeline = Pipeline("benchmark")

        @pipeline.source(bounded=True)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

        for stage in stages:
            pipeline.stage(sink=DeltaSink(str(directory / stage)), inputs={"frame": "rows"}, name=stage)(_waited_for)
        took_s += site.run(pipeline, directory / str(number)).run_s
    for stage in _STAGES:
        if (found := site.rows(directory / stage)) != source.rows:
            raise AssertionError(f"{stage} has {found} rows instead of {source.rows}")
    remove(directory)
    return took_s


def _waited_for(frame: DataFrame) -> DataFrame:
    def wait(value):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        time.sleep(0.001)
        return value

    return frame.withColumn("value", F.udf(wait, "double", useArrow=False)("value"))
