"""The code of a pipeline that changes between two runs."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from tests.spark.conftest import Site
from tests.support.growing_table import Events


def code(
    site: Site,
    events: Events,
    *stages: str,
    interval: str = "1 second",
    delay: str = "10 seconds",
    unaligned: bool = False,
    odd_every: str | None = None,
) -> Pipeline:
    """Declares some of these stages: a copy, the copy of the copy, its rows per minute, its odd rows, their number per minute, all rows."""
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval=interval, unaligned=unaligned))
    events.source(pipeline, delay)

    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    def again(copied: DataFrame) -> DataFrame:
        return copied.select("id")

    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    def odd(copied: DataFrame) -> DataFrame:
        return copied.where("id % 2 = 1")

    def odd_minutes(odd: DataFrame) -> DataFrame:
        return minutes(odd)

    def everything(events: DataFrame) -> DataFrame:
        return events.select("id")

    made: dict[str, Callable[..., DataFrame]] = {
        "copied": copied, "again": again, "minutes": minutes, "odd": odd, "odd_minutes": odd_minutes, "everything": everything,
    }  # fmt: skip
    for name in stages:
        trigger_interval = odd_every if name == "odd" else None
        pipeline.stage(sink=DeltaSink(str(site.tables / name)), trigger_interval=trigger_interval)(made[name])
    return pipeline
