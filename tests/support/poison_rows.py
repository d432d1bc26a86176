"""Pipelines with rows that fail each batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy, Tolerate
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.protocol.losses import PassedOver, SourceFile, TableFile
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count

POISON = frozenset({230, 231, 270, 372})


def scoring(poison: frozenset[int] = POISON) -> Callable[[str], Column]:
    def score(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        if number in poison:
            raise ValueError(f"record {number} cannot be scored")
        return number

    return F.udf(score, "long", useArrow=False)


TOLERATE = Tolerate(after=1, rows="100 per hour")


def direct(
    site: Site,
    read: dict[str, Callable[[SparkSession], DataFrame]],
    score: Callable[[str], Column],
    *,
    bounded: bool = True,
    tolerate: Tolerate | None = TOLERATE,
) -> Pipeline:
    """Declares a pipeline with a stage for each source, which reads the source itself."""
    options: dict[str, Any] = {"on_end": "suspend"} if bounded else {"checkpoint": CheckpointSettings(interval="1 second")}
    pipeline = Pipeline("direct", restart=RestartStrategy.none(), **options)
    for name, load in read.items():
        tidied: dict[str, Any] = {"after_publication": "delete"} if bounded and name == "files" else {}
        pipeline.source(bounded=bounded, name=name, **tidied)(lambda spark, load=load: load(spark))
        pipeline.stage(
            name=f"{name}_scored",
            inputs={"rows": name},
            sink=DeltaSink(str(site.tables / name)),
            tolerate=tolerate,
        )(lambda rows: rows.select(score("id").alias("id")))
    return pipeline


class FilesAndVersions:
    """A folder of JSON files and a Delta table. Both have the same numbers, four files for each addition."""

    def __init__(self, site: Site, root: Path) -> None:
        self.site, self.folder, self.table, self.rows = site, root / "a folder", root / "a table", 0
        self.read: dict[str, Callable[[SparkSession], DataFrame]] = {
            "files": lambda spark: spark.readStream.schema("id long, text string").json(str(self.folder)),
            "versions": lambda spark: spark.readStream.format("delta").option("maxFilesPerTrigger", 3).load(str(self.table)),
        }

    def add(self) -> None:
        numbers = self.site.spark.range(self.rows, self.rows + 40).repartitionByRange(4, "id")
        rows = numbers.withColumn("text", F.col("id").cast("string"))
        rows.write.mode("append").json(str(self.folder))
        rows.write.mode("append").format("delta").save(str(self.table))
        self.rows += 40

    def left_out(self, name: str) -> set[int]:
        """Returns the rows of the files that the ledger names, read from the files."""
        gone = set[int]()
        for loss in units(self.site, f"{name}_scored"):
            if isinstance(loss.unit, SourceFile):
                found = self.site.spark.read.json(unquote(loss.unit.path))
            else:
                assert isinstance(loss.unit, TableFile)
                found = self.site.spark.read.parquet(str(self.table / loss.unit.path))
            numbers = {row.id for row in found.collect()}
            assert (loss.input, loss.rows, loss.rows > 0) == (name, len(numbers), True)
            assert not numbers & gone
            gone |= numbers
        return gone

    def is_read(self, poison: frozenset[int]) -> bool:
        """Returns True if each row is public or in the ledger, and the ledger has the rows that fail a stage."""
        lost = {name: self.left_out(name) for name in self.read}
        return all(
            poison <= gone and public_count(self.site.tables / name) == self.rows - len(gone) for name, gone in lost.items()
        )

    def assert_adds_up(self) -> None:
        for name in self.read:
            assert ids(self.site.tables / name) == sorted(set(range(self.rows)) - self.left_out(name))


def units(site: Site, stage: str) -> list[PassedOver]:
    entries = LossLedger(open_files(str(site.home))).entries()
    found = [entry.recorded.loss for entry in entries if entry.state is not LossState.UNDONE]
    return [loss for loss in found if isinstance(loss, PassedOver) and loss.stage == stage]


def ids(table: Path) -> list[int]:
    return sorted(number for (number,) in public(table, ["id"]).elements())
