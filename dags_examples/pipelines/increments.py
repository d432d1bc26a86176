"""Flights that arrive day by day: each run takes up what has arrived since, and publishes the windows that have closed.

The watermark is held within a run, so that a day's rows may come in any order; at the run's end it moves to the newest departure
less a delay.
"""

from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    """The parameters of a run."""

    arrivals: str = Field(title="Arrivals", description="Delta table that each day's departures are appended to.")
    warehouse: str = Field(title="Warehouse", description="Directory of the tables that are written.")


pipeline = Pipeline("increments", params=Params, on_end="suspend")


@pipeline.source(bounded=True, event_time="departure", watermark_delay="1 hour", hold_watermark=True)
def departures(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").load(params.arrivals)


@pipeline.stage(sink=DeltaSink("{warehouse}/hourly_departures"))
def hourly_departures(departures: DataFrame) -> DataFrame:
    """Departures and cancellations per hour and origin."""
    return (
        departures.groupBy(F.window("departure", "1 hour").alias("hour"), "origin")
        .agg(F.count("*").alias("flights"), F.count_if(F.col("dep_delay").isNull()).alias("cancelled"))
        .select(
            "origin", F.col("hour.start").alias("hour_start"), F.window_time("hour").alias("hour_end"), "flights", "cancelled"
        )
    )


@pipeline.stage(sink=DeltaSink("{warehouse}/daily_departures"))
def daily_departures(hourly_departures: DataFrame) -> DataFrame:
    """The same per day (UTC) and origin, with the busiest hour's departures."""
    return (
        hourly_departures.groupBy(F.window("hour_end", "1 day").alias("day"), "origin")
        .agg(
            F.sum("flights").alias("flights"),
            F.sum("cancelled").alias("cancelled"),
            F.max("flights").alias("busiest_hour_flights"),
        )
        .select(
            "origin",
            F.col("day.start").alias("day_start"),
            F.window_time("day").alias("day_end"),
            "flights",
            "cancelled",
            "busiest_hour_flights",
        )
    )
