"""A table's history, then its live tail, in one pipeline: each row once, and no row of the history late whatever its order.

Each stage reads both by itself: only where the history is an input does its end hold the watermark back.
"""

from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy


class Params(BaseModel):
    """The parameters of a run."""

    arrivals: str = Field(title="Arrivals", description="Delta table that departures are appended to, all the time.")
    warehouse: str = Field(title="Warehouse", description="Directory of the tables that are written.")


pipeline = Pipeline(
    "backfill",
    params=Params,
    checkpoint=CheckpointSettings(interval="30 seconds"),
    restart=RestartStrategy.exponential_delay(initial_backoff="5 seconds", max_backoff="2 minutes"),
)


@pipeline.source(bounded=True, event_time="departure")
def history(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").load(params.arrivals)


@pipeline.source(bounded=False, after="history", event_time="departure", watermark_delay="1 day")
def tail(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").load(params.arrivals)


@pipeline.stage(sink=DeltaSink("{warehouse}/departed"))
def departed(history: DataFrame, tail: DataFrame) -> DataFrame:
    """Each departure."""
    return history.unionByName(tail).select("departure", "origin", "carrier", "flight", "dep_delay")


@pipeline.stage(sink=DeltaSink("{warehouse}/hourly_delays"))
def hourly_delays(history: DataFrame, tail: DataFrame) -> DataFrame:
    """Per hour and origin how many there were, and how late; from the history's end on."""
    return (
        history.unionByName(tail)
        .groupBy(F.window("departure", "1 hour").alias("hour"), "origin")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay"))
        .select("origin", F.col("hour.start").alias("hour_start"), "flights", "mean_delay")
    )
