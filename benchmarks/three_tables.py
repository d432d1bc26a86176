"""The bounded job of :mod:`benchmarks.beside_flink` as a pipeline: a filter, sums by hour and bucket, and the rows of each user."""

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    """The directories of the events and of the tables."""

    source: str
    output: str


pipeline = Pipeline("three_tables", params=Params)


@pipeline.source(bounded=True, event_time="at", watermark_delay="10 minutes")
def events(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE").parquet(params.source)


@pipeline.stage(sink=DeltaSink("{output}/large"))
def large(events: DataFrame) -> DataFrame:
    return events.where("amount >= 500")


@pipeline.stage(sink=DeltaSink("{output}/hourly"))
def hourly(events: DataFrame) -> DataFrame:
    sums = events.groupBy(F.window("at", "1 hour").alias("window"), (F.col("user") % 100).alias("bucket"))
    return sums.agg(F.sum("amount").alias("amount"), F.count("*").alias("n")).selectExpr(
        "window.start hour", "bucket", "amount", "n"
    )


@pipeline.stage(sink=DeltaSink("{output}/users", mode="complete"))
def users(events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(F.count("*").alias("n"))
