"""A pipeline without an end and four tables: a copy, the newest order of each customer, scores, and a table that may refuse rows.

One order in some files cannot be scored. With :data:`MENDED` in the environment, every order can.
"""

import os
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline, Tolerate

MENDED = "SOAK_PIPELINE_IS_MENDED"
CUSTOMERS = 50
BAD = "n/a"


class Params(BaseModel):
    events: str
    warehouse: str


pipeline = Pipeline("soak", params=Params, checkpoint=CheckpointSettings(interval="2 seconds"))


@pipeline.source(bounded=False)
def orders(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").load(params.events)


@pipeline.stage(sink=DeltaSink("{warehouse}/copied"))
def copied(orders: DataFrame) -> DataFrame:
    return orders


@pipeline.stage(sink=DeltaSink("{warehouse}/newest", mode="upsert", keys=["customer"], sequence_by="id"))
def newest(copied: DataFrame) -> DataFrame:
    return copied.select("customer", "id")


@pipeline.stage(sink=DeltaSink("{warehouse}/refusing", hold=Hold(time="1 hour")))
def refusing(copied: DataFrame) -> DataFrame:
    return copied.select("id")


def score(amount):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
    return 0 if amount == BAD and MENDED in os.environ else int(amount)


@pipeline.stage(sink=DeltaSink("{warehouse}/scored"), tolerate=Tolerate(rows="100000 per hour"))
def scored(orders: DataFrame) -> DataFrame:
    return orders.select("id", F.udf(score, "long", useArrow=False)("amount").alias("score"))


class Orders:
    """The pipeline's input, a Delta table. Each addition is four files, and one order in the last of them cannot be scored."""

    FILES = 4

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0

    def add(self, rows: int) -> None:
        for file in range(self.FILES):
            first, self.rows = self.rows, self.rows + rows // self.FILES
            ids = range(first, self.rows)
            amounts = [str(number % 90) for number in ids]
            if file == self.FILES - 1:
                amounts[len(amounts) // 2] = BAD
            columns = {"id": pa.array(ids, pa.int64()), "customer": [number * 7 % CUSTOMERS for number in ids], "amount": amounts}
            write_deltalake(str(self.path), pa.table(columns), mode="append")
