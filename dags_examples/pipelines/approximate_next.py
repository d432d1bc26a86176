"""The corrected ``approximate.py``: a cancelled flight has no delay. Everything else is the same."""

from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from spark_jobs import DeltaSink, Pipeline, Tolerate


class Params(BaseModel):
    """The parameters of a run."""

    arrivals: str = Field(title="Arrivals", description="Delta table that each day's departures are appended to.")
    warehouse: str = Field(title="Warehouse", description="Directory of the tables that are written.")


pipeline = Pipeline("approximate", params=Params, on_end="suspend")


@pipeline.source(bounded=True)
def departures(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").load(params.arrivals)


@pipeline.stage
def spread(departures: DataFrame) -> DataFrame:
    """Small files: a stage that passes over rows loses a whole file."""
    return departures.select("departure", "origin", "flight", "dep_delay").repartition(32)


@F.udf(returnType=LongType())
def delay_s(minutes):  # type: ignore[no-untyped-def]  # type hints would make it another kind of UDF
    """The delay in seconds; None for a cancelled flight."""
    return None if minutes is None else minutes * 60


@pipeline.stage(sink=DeltaSink("{warehouse}/delays"), tolerate=Tolerate(rows="5000 per hour"))
def delays(spread: DataFrame) -> DataFrame:
    return spread.select("departure", "origin", "flight", delay_s("dep_delay").alias("delay_s"))
