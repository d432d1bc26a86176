"""A pipeline without an end: a copy through Python workers, a copy behind it, and counts per minute, each into a table.

If the environment has :data:`BOUNDED`, its input ends, and each batch of a stage reads one file.
"""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from tests.support.opened_tables import IN_A_STORE, opened

SECOND_US = 1_000_000
DELAY_S = 10
TABLES = ("copied", "again", "minutes")
BOUNDED = "LIVE_PIPELINE_IS_BOUNDED"
IS_BOUNDED = BOUNDED in os.environ
FILES_OF_A_BATCH = 1 if IS_BOUNDED else None


class Params(BaseModel):
    events: str
    warehouse: str


pipeline = Pipeline(
    "live",
    params=Params,
    checkpoint=CheckpointSettings(interval="1 second", aligned_timeout="never"),
    restart=RestartStrategy.fixed_delay(attempts=1000, delay="200 milliseconds"),
)


@pipeline.source(bounded=IS_BOUNDED, event_time="at", watermark_delay=f"{DELAY_S} seconds", hold_watermark=IS_BOUNDED or None)
def events(spark: SparkSession, params: Params) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", FILES_OF_A_BATCH or 5).load(params.events)


def same(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
    return number


@pipeline.stage(sink=DeltaSink("{warehouse}/copied"))
def copied(events: DataFrame) -> DataFrame:
    return events.select(F.udf(same, "long", useArrow=False)("id").alias("id"), "at")


@pipeline.stage(sink=DeltaSink("{warehouse}/again"), max_files_per_trigger=FILES_OF_A_BATCH)
def again(copied: DataFrame) -> DataFrame:
    return copied.select("id")


@pipeline.stage(sink=DeltaSink("{warehouse}/minutes"), max_files_per_trigger=FILES_OF_A_BATCH)
def minutes(copied: DataFrame) -> DataFrame:
    counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(
        F.count("*").alias("events"), F.sum("id").alias("ids")
    )
    return counts.select(F.col("minute.start").alias("minute"), "events", "ids")


class Events:
    """The pipeline's input. ``id`` counts the rows, and ``at`` is one second later for each row, so that no row is ever late."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0

    def add(self, rows: int, files: int = 1) -> None:
        for _ in range(files):
            self._add_file(rows // files)

    def _add_file(self, rows: int) -> None:
        ids = list(range(self.rows, self.rows + rows))
        at = pa.array([number * SECOND_US for number in ids], pa.timestamp("us", tz="UTC"))
        write_deltalake(str(self.path), pa.table({"id": pa.array(ids, pa.int64()), "at": at}), mode="append")
        self.rows += rows

    def closed_minutes(self) -> list[tuple[Any, ...]]:
        """Returns every window that the watermark has passed once all rows were read: its start, its number of rows and their sum."""
        newest_s = self.rows - 1 - DELAY_S
        return [window for window in self.all_minutes() if window[0] + 60 <= newest_s]

    def all_minutes(self, rows: int | None = None) -> list[tuple[Any, ...]]:
        """Returns every window of the rows, as after a drain: of all rows, or of the first ones."""
        ids = pd.DataFrame({"id": range(self.rows if rows is None else rows)})
        windows = ids.groupby(ids["id"] // 60)["id"].agg(["count", "sum"])
        return [(int(w) * 60, int(n), int(s)) for w, n, s in windows.itertuples()]


def public_ids(table: Path | str) -> list[int]:
    """Returns the column ``id`` of a table, sorted; empty if the table does not exist."""
    return sorted(opened(str(table)).to_pyarrow_table(columns=["id"])["id"].to_pylist()) if _exists(table) else []


def public_minutes(table: Path | str) -> list[tuple[Any, ...]]:
    """Returns the public windows in the form of :meth:`Events.closed_minutes`."""
    if not _exists(table):
        return []
    found = opened(str(table)).to_pyarrow_table().to_pandas()
    begins_s = found["minute"].map(lambda minute: int(minute.timestamp()))
    return sorted((begin_s, int(n), int(s)) for begin_s, n, s in zip(begins_s, found["events"], found["ids"], strict=True))


def _exists(table: Path | str) -> bool:
    return DeltaTable.is_deltatable(str(table), IN_A_STORE)
