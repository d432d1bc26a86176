"""A pipeline that has everything in a store: its source, a static table, the rows between its stages and its table.

Its first stage waits for parts that the test admits, as in :mod:`tests.support.bounded_pipeline`, whose rows it reads.
"""

import os
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from tests.support.bounded_pipeline import KEYS, admitted, rows_of


class Params(BaseModel):
    store: str
    marks: str


pipeline = Pipeline("orders", params=Params, checkpoint=CheckpointSettings(interval="1 second"))


@pipeline.source(bounded=True, event_time="at", watermark_delay="1 second")
def changes(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(f"{params.store}/changes")


@pipeline.static
def weights(spark: SparkSession, params: Params) -> DataFrame:
    return spark.read.format("delta").load(f"{params.store.replace('s3:', 's3a:')}/weights")


@pipeline.stage
def admit(changes: DataFrame, params: Params) -> DataFrame:
    return changes.withColumn("part", admitted(params.marks, "admit"))


@pipeline.stage(sink=DeltaSink("{store}/ware house/windows"))
def windows(admit: DataFrame, weights: DataFrame) -> DataFrame:
    weighed = admit.join(F.broadcast(weights), "key")
    counts = weighed.groupBy(F.window("at", "10 minutes").alias("window")).agg(
        F.count("part").alias("rows"), F.sum("weight").alias("weight")
    )
    return counts.select(F.col("window.start").alias("begin"), "rows", "weight")


def deliver(store: str, parts: range) -> None:
    """Appends the rows of some parts to the source, each as a file."""
    for part in parts:
        write_deltalake(f"{store}/changes", _table(rows_of(part)), mode="append", storage_options=_options())


def deliver_weights(store: str) -> None:
    """Makes the static table: each key weighs ten times its number."""
    table = pa.table({"key": list(range(KEYS)), "weight": [10 * key for key in range(KEYS)]})
    write_deltalake(f"{store}/weights", table, storage_options=_options())


def answer(parts: int) -> list[tuple[Any, ...]]:
    """The result of a batch query over the rows of the first parts."""
    import pandas as pd

    rows = pd.concat([rows_of(part) for part in range(parts)])
    rows["weight"] = 10 * rows["key"]
    found = rows.groupby(rows["at"].dt.floor("10min"))["weight"].agg(["count", "sum"]).itertuples()
    return sorted((begin.to_pydatetime(), int(count), int(weight)) for begin, count, weight in found)


def public(store: str) -> list[tuple[Any, ...]]:
    """The rows of the table, sorted."""
    table = DeltaTable(f"{store}/ware house/windows", storage_options=_options()).to_pyarrow_table()
    return sorted(zip(*(table[column].to_pylist() for column in ("begin", "rows", "weight")), strict=True))


def _table(rows: Any) -> pa.Table:
    return pa.Table.from_pandas(rows, preserve_index=False)


def _options() -> dict[str, str]:
    return ObjectStoreSettings.of(os.environ).for_delta_rs()
