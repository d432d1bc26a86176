"""The airports, with all of their departures so far."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@dp.materialized_view(comment="Departures per origin, in all hours that are public.")
def origins() -> DataFrame:
    hours = SparkSession.active().read.table("hourly_departures")
    return hours.groupBy("origin").agg(F.sum("flights").alias("flights"), F.max("hour_end").alias("until"))
