"""Three stages over the flights of 2013: per hour, per day, and the spells in which an airline ran late.

Each stage reads the one before it. A sum and a count go from stage to stage, so that a day's mean is that of its flights, not of
its hours.
"""

from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline

LATE_DAY_MIN = 20
"""A day counts as late if its flights left this many minutes late on average."""


class Params(BaseModel):
    """The parameters of a run."""

    flights: str = Field(title="Departures", description="Delta table with the departures.")
    warehouse: str = Field(
        title="Warehouse", description="Directory of the tables that are written, and of the table 'airlines'."
    )


pipeline = Pipeline("flights", params=Params)


@pipeline.source(bounded=True, event_time="departure")
def departures(spark: SparkSession, params: Params) -> DataFrame:
    """The year's departures, in any order: without a delay no row of a bounded input is late."""
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 4).load(params.flights)


@pipeline.static
def airlines(spark: SparkSession, params: Params) -> DataFrame:
    return spark.read.format("delta").load(f"{params.warehouse}/airlines")


@pipeline.stage(sink=DeltaSink("{warehouse}/hourly", partition_by=["origin"]))
def hourly(departures: DataFrame) -> DataFrame:
    """Departures and delays per hour, origin and airline. A flight without a departure delay never left."""
    return (
        departures.groupBy(F.window("departure", "1 hour").alias("hour"), "origin", "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_min"),
            F.max("dep_delay").alias("worst_delay_min"),
        )
        .select(
            "origin",
            "carrier",
            F.col("hour.start").alias("hour_start"),
            F.window_time("hour").alias("hour_end"),
            "flights",
            "departed",
            "delay_min",
            "worst_delay_min",
        )
    )


@pipeline.stage(sink=DeltaSink("{warehouse}/daily"))
def daily(hourly: DataFrame, airlines: DataFrame) -> DataFrame:
    """Departures and delays per day (UTC) and airline, with the airline's name."""
    return (
        hourly.groupBy(F.window("hour_end", "1 day").alias("day"), "carrier")
        .agg(
            F.sum("flights").alias("flights"),
            F.sum(F.col("flights") - F.col("departed")).alias("cancelled"),
            (F.sum("delay_min") / F.sum("departed")).alias("mean_delay_min"),
            F.max("worst_delay_min").alias("worst_delay_min"),
        )
        .join(airlines.withColumnRenamed("name", "airline"), "carrier", "left")
        .select(
            "carrier",
            "airline",
            F.col("day.start").alias("day_start"),
            F.window_time("day").alias("day_end"),
            "flights",
            "cancelled",
            "mean_delay_min",
            "worst_delay_min",
        )
    )


@pipeline.stage(sink=DeltaSink("{warehouse}/late_spells"))
def late_spells(daily: DataFrame) -> DataFrame:
    """Sessions of late days: the spells of days on end in which an airline ran late."""
    return (
        daily.where(F.col("mean_delay_min") >= LATE_DAY_MIN)
        .groupBy(F.session_window("day_end", "25 hours").alias("spell"), "carrier", "airline")
        .agg(
            F.min("day_start").alias("first_day"),
            F.max("day_start").alias("last_day"),
            F.count("*").alias("days"),
            F.sum("flights").alias("flights"),
            F.max("mean_delay_min").alias("worst_day_mean_min"),
        )
        .drop("spell")
    )
