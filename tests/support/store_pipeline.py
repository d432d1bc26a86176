"""A pipeline with everything in a store: its source, a static table, the rows between its stages, deleted keys and its tables.

Its first stage waits for parts that the test admits, as in :mod:`tests.support.bounded_pipeline`, whose rows it reads.
"""

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.storage.object_store_kinds import is_in_object_store
from spark_jobs.storage.settings_by_bucket import settings_for
from tests.support.bounded_pipeline import KEYS, admitted, rows_of
from tests.support.keyed_changes import query


class Params(BaseModel):
    store: str
    warehouse: str
    marks: str


KEYED: dict[str, Any] = {"keys": ["key"], "sequence_by": "changed", "apply_as_deletes": "gone"}


def changes(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(f"{params.store}/changes")


def weights(spark: SparkSession, params: Params) -> DataFrame:
    other_spelling = params.store.replace("s3:", "s3a:")
    return spark.read.format("delta").load(f"{other_spelling}/weights")


def admit(changes: DataFrame, params: Params) -> DataFrame:
    return changes.withColumn("part", admitted(params.marks, "admit"))


def windows(admit: DataFrame, weights: DataFrame) -> DataFrame:
    weighed = admit.join(F.broadcast(weights), "key")
    counts = weighed.groupBy(F.window("at", "10 minutes").alias("window")).agg(
        F.count("part").alias("rows"), F.sum("weight").alias("weight")
    )
    return counts.select(F.col("window.start").alias("begin"), "rows", "weight")


def newest(admit: DataFrame) -> DataFrame:
    return admit.select("key", "changed", "gone", "id")


def versions(admit: DataFrame) -> DataFrame:
    return admit.select("key", "changed", "gone", "id")


def declared(*, bounded: bool) -> Pipeline:
    """Declares the pipeline, whose source has an end or none."""
    pipeline = Pipeline("orders", params=Params, checkpoint=CheckpointSettings(interval="1 second"))
    pipeline.source(bounded=bounded, event_time="at", watermark_delay="1 second")(changes)
    pipeline.static(weights)
    pipeline.stage(admit)
    pipeline.stage(sink=DeltaSink("{store}/{warehouse}/windows"))(windows)
    pipeline.stage(sink=DeltaSink("{store}/{warehouse}/newest", mode="upsert", **KEYED))(newest)
    pipeline.stage(sink=DeltaSink("{store}/{warehouse}/versions", mode="history", **KEYED))(versions)
    return pipeline


pipeline = declared(bounded=True)


def deliver(store: str, parts: range) -> None:
    """Appends the rows of some parts to the source, one file per part."""
    for part in parts:
        write_deltalake(f"{store}/changes", _table(rows_of(part)), mode="append", storage_options=_options(store))


def deliver_weights(store: str) -> None:
    """Makes the static table. Each key weighs ten times its number."""
    table = pa.table({"key": list(range(KEYS)), "weight": [10 * key for key in range(KEYS)]})
    write_deltalake(f"{store}/weights", table, storage_options=_options(store))


def answer(parts: int) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the results of batch queries over the rows of the first parts."""
    changes = pa.concat_tables([_table(rows_of(part)) for part in range(parts)])
    queries = {
        "windows": """SELECT time_bucket(INTERVAL '10 minutes', "at"), count(*), sum(10 * key)::BIGINT FROM changes GROUP BY 1""",
        "newest": """
            SELECT key, changed, id FROM changes QUALIFY row_number() OVER (PARTITION BY key ORDER BY changed DESC) = 1 AND NOT gone""",
        "versions": """
            SELECT key, changed, id, changed, next, next IS NULL
            FROM (SELECT *, lead(changed) OVER (PARTITION BY key ORDER BY changed) AS next FROM changes) WHERE NOT gone""",
    }
    return {name: sorted(query(sql, changes=changes).elements(), key=str) for name, sql in queries.items()}


def public(store: str, warehouse: str) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the rows of the tables, sorted."""
    columns = {
        "windows": ("begin", "rows", "weight"),
        "newest": ("key", "changed", "id"),
        "versions": ("key", "changed", "id", "valid_from", "valid_to", "is_current"),
    }
    found = {}
    for name, names in columns.items():
        table = DeltaTable(f"{store}/{warehouse}/{name}", storage_options=_options(store)).to_pyarrow_table()
        found[name] = sorted(zip(*(table[column].to_pylist() for column in names), strict=True), key=str)
    return found


def _table(rows: Any) -> pa.Table:
    return pa.Table.from_pandas(rows, preserve_index=False)


def _options(store: str) -> dict[str, str] | None:
    return settings_for(store).for_delta_rs() if is_in_object_store(store) else None
