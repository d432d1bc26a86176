"""A pipeline whose input ends: a stage without a sink, and behind it windows and an upsert with deletes.

Stages wait where the test holds them, so a run stops at the same point on any machine. The module is also the entry of real drivers, in
which each stage is held.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from tests.support.opened_tables import IN_A_STORE, opened

STAGES = ("admit", "windows", "newest")
FIRST_STAGE = STAGES[0]
SINKS = ("windows", "newest")
ROWS_A_PART = 40
KEYS = 11
FIRST = datetime(2026, 3, 2, tzinfo=UTC)

Answer = dict[str, list[tuple[Any, ...]]]


def rows_of(part: int) -> pd.DataFrame:
    """Returns the rows of one file of the input: changes of a few keys, seven seconds apart.

    Some are deletes. A delete is newer than the next change of its key, which comes after it.
    """
    ids = range(part * ROWS_A_PART, (part + 1) * ROWS_A_PART)
    found = pd.DataFrame({"id": list(ids), "part": part})
    gone = found["id"] % 13 == 0
    return found.assign(
        key=found["id"] % KEYS,
        gone=gone,
        changed=found["id"] + gone * (KEYS + 1),
        at=[FIRST + timedelta(seconds=7 * number) for number in ids],
    )


class Changes:
    """The input: a Delta table with a file for each part, which is a batch of each stage.

    A batch of a held stage waits until its part is admitted, and leaves a mark when it begins.
    """

    def __init__(self, root: Path, parts: int) -> None:
        self.path, self.parts = root / "changes", 0
        self._admitted, self._begun = _marks(str(self.path))
        self.deliver(parts)
        for stage in STAGES:
            for marks in (self._admitted, self._begun):
                (marks / stage).mkdir(parents=True)

    def deliver(self, parts: int) -> None:
        for part in range(self.parts, self.parts + parts):
            write_deltalake(str(self.path), pa.Table.from_pandas(rows_of(part), preserve_index=False), mode="append")
        self.parts += parts

    def admit(self, parts: int, *stages: str) -> None:
        """Lets the batches of the first parts go on in some stages, or in all."""
        for stage in stages or STAGES:
            for part in range(parts):
                (self._admitted / stage / str(part)).touch()

    def begun(self) -> dict[str, list[int]]:
        """Returns for each stage the parts whose batches have begun."""
        return {stage: sorted(int(mark.name) for mark in (self._begun / stage).iterdir()) for stage in STAGES}

    def forget(self) -> None:
        """Removes the marks of the batches that have begun."""
        for mark in self._begun.glob("*/*"):
            mark.unlink()

    def answer(self, parts: int | None = None) -> Answer:
        """Returns the result of a batch query over the rows of the first parts, or of all."""
        rows = pd.concat([rows_of(part) for part in range(self.parts if parts is None else parts)])
        begin = rows["at"].dt.floor("10min")
        windows = rows.groupby(begin)["id"].agg(["count", "sum"]).itertuples()
        newest = rows.sort_values("changed").groupby("key").tail(1)
        return {
            "windows": sorted((begin.to_pydatetime(), int(count), int(ids)) for begin, count, ids in windows),
            "newest": sorted((int(row.key), int(row.id), int(row.part)) for row in newest.itertuples() if not row.gone),
        }


def public(warehouse: Path | str) -> Answer:
    """Returns the rows of both tables, sorted. A table that does not exist is empty."""
    columns = {"windows": ("begin", "rows", "ids"), "newest": ("key", "id", "part")}
    found: Answer = {name: [] for name in columns}
    for name, names in columns.items():
        if DeltaTable.is_deltatable(f"{warehouse}/{name}", IN_A_STORE):
            table = opened(f"{warehouse}/{name}").to_pyarrow_table()
            found[name] = sorted(zip(*(table[column].to_pylist() for column in names), strict=True))
    return found


def _marks(changes: str) -> tuple[Path, Path]:
    return Path(f"{changes}-admitted"), Path(f"{changes}-begun")


def admitted(changes: str, stage: str) -> Column:
    """Returns the column ``part``. A row waits until its part is admitted."""
    admitted, begun = (marks / stage for marks in _marks(changes))

    def wait(part):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        (begun / str(part)).touch()
        while not (admitted / str(part)).exists():
            time.sleep(0.02)
        return part

    return F.udf(wait, "long", useArrow=False)("part")


class Params(BaseModel):
    events: str
    warehouse: str


def orders(
    interval: str = "1 hour", on_end: Literal["drain", "suspend"] = "drain", held: tuple[str, ...] = (FIRST_STAGE,)
) -> Pipeline:
    """Declares a pipeline of changes, with their windows of ten minutes and the newest row of each key.

    Args:
        interval: The interval of checkpoints.
        on_end: ``drain`` closes the open windows, ``suspend`` keeps them.
        held: The stages that wait for their parts. If all are held, the later stages read one part per batch, otherwise all in one batch.
    """
    pipeline = Pipeline("orders", params=Params, checkpoint=CheckpointSettings(interval=interval), on_end=on_end)
    limit = 1 if held == STAGES else None

    def hold(rows: DataFrame, stage: str, params: Params) -> DataFrame:
        return rows.withColumn("part", admitted(params.events, stage)) if stage in held else rows

    @pipeline.source(bounded=True, event_time="at", watermark_delay="1 second", hold_watermark=limit is not None)
    def changes(spark: SparkSession, params: Params) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(params.events)

    @pipeline.stage
    def admit(changes: DataFrame, params: Params) -> DataFrame:
        return hold(changes, "admit", params)

    @pipeline.stage(sink=DeltaSink("{warehouse}/windows"), max_files_per_trigger=limit)
    def windows(admit: DataFrame, params: Params) -> DataFrame:
        counts = (
            hold(admit, "windows", params)
            .groupBy(F.window("at", "10 minutes").alias("window"))
            .agg(F.count("part").alias("rows"), F.sum("id").alias("ids"))
        )
        return counts.select(F.col("window.start").alias("begin"), "rows", "ids")

    upsert = DeltaSink("{warehouse}/newest", mode="upsert", keys=("key",), sequence_by="changed", apply_as_deletes="gone")

    @pipeline.stage(sink=upsert, max_files_per_trigger=limit)
    def newest(admit: DataFrame, params: Params) -> DataFrame:
        return hold(admit, "newest", params).select("key", "id", "changed", "gone", "part")

    return pipeline


pipeline = orders(held=STAGES)
