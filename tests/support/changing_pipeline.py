"""A pipeline for each day of a changing table: it returns one column more than the day before, and has a sink of each mode.

A stage without a sink gains the columns as well, its files are packed where they become public, and one table is published by Spark,
because delta-rs cannot.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from tests.support.opened_tables import opened
from tests.support.run_site import RunSite
from tests.support.small_pipeline import FILES_A_BATCH, Event, Params, events_of

APPENDED, REPLACED, MERGED = "appended", "replaced", "merged"
COLUMNS_MAX = 100
_ROW_TRACKING = {"delta.enableRowTracking": "true"}
_DELETED = "minute(at) < 20"


def changing(day: int) -> Pipeline:
    """Returns the pipeline of a day. Its rows have the columns from ``day_0`` to that day's column."""
    pipeline = Pipeline("changing", params=Params, on_end="suspend")
    columns = [f"day_{number}" for number in range(day + 1)]

    @pipeline.source(bounded=True)
    def events(spark: Any, params: Params) -> Any:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", FILES_A_BATCH).load(params.events)

    @pipeline.stage
    def dated(events: Any) -> Any:
        return events.withColumn("hour", F.hour("at")).withColumns({name: F.lit(day) for name in columns})

    @pipeline.stage(sink=DeltaSink("{warehouse}/appended", schema_evolution="add_columns", target_file_size="1 MB"))
    def appended(dated: Any) -> Any:
        return dated.where("true")

    @pipeline.stage(sink=DeltaSink("{warehouse}/replaced", mode="complete", table_properties=_ROW_TRACKING))
    def replaced(dated: Any) -> Any:
        return dated.groupBy("origin").agg(F.count("*").alias("events"))

    merging = {"keys": ["origin", "hour"], "sequence_by": "at", "apply_as_deletes": _DELETED}

    @pipeline.stage(sink=DeltaSink("{warehouse}/merged", mode="upsert", schema_evolution="add_columns", **merging))  # type: ignore[arg-type]
    def merged(dated: Any) -> Any:
        return dated.where("true")

    return pipeline


def answer(days: Iterable[int]) -> dict[str, list[Any]]:
    """Returns the expected rows of the tables after these days. It uses neither Spark nor the product."""
    rows = [(event, day) for day in days for event in events_of(day)]
    newest: dict[tuple[str, int], tuple[Event, int]] = {}
    for event, day in sorted(rows, key=lambda row: row[0].at):
        newest[event.origin, event.at.hour] = event, day
    return {
        APPENDED: sorted((*event, *_columns(day)) for event, day in rows),
        REPLACED: sorted(Counter(event.origin for event, _ in rows).items()),
        MERGED: sorted((*event, *_columns(day)) for event, day in newest.values() if event.at.minute >= 20),
    }


def public(site: RunSite) -> dict[str, list[Any]]:
    """Returns the rows of the tables as Python objects. Columns that a table does not have are null."""
    tables = {name: opened(site.table(name)) for name in (APPENDED, REPLACED, MERGED)}
    dated = ["at", "origin", *(f"day_{number}" for number in range(COLUMNS_MAX))]
    return {name: _rows(table, ["origin", "events"] if name == REPLACED else dated) for name, table in tables.items()}


def _columns(day: int) -> tuple[int | None, ...]:
    return tuple(day if number <= day else None for number in range(COLUMNS_MAX))


def _rows(table: DeltaTable, names: list[str]) -> list[Any]:
    found = table.to_pyarrow_table().to_pylist()
    return sorted((tuple(row.get(name) for name in names) for row in found), key=str)
