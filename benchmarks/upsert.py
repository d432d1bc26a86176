"""A staged upsert against a MERGE in ``foreachBatch``: one MERGE for the whole run here, one for each batch there."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.site import Input, Outcome, Site, outcome
from spark_jobs import DeltaSink, Pipeline

UPSERT = Kind("upsert", "seconds a run, warm", Better.LESS, "staged upsert", "a MERGE for each batch")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Batches in which every key comes several times; both ways keep the newest row of each."""
    files, rows = (4, 10_000) if quick else (20, 50_000)
    source = site.input("events", files, rows)
    yield measured_in_turn(
        UPSERT,
        f"{files} batches of {rows:,} rows, 1,000 keys",
        ours=lambda: _checked(site, source, staged).run_s,
        plain=lambda: _checked(site, source, merged).run_s,
        turns=1 if quick else 3,
        tell=tell,
    )


def staged(site: Site, source: Input, directory: Path) -> Outcome:
    """A pipeline with an upsert sink."""
    pipeline = Pipeline("upsert")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))

    @pipeline.stage(sink=DeltaSink(str(directory / "newest"), mode="upsert", keys=["key"], sequence_by="id"))
    def newest(rows: DataFrame) -> DataFrame:
        return rows

    return site.run(pipeline, directory)


def merged(site: Site, source: Input, directory: Path) -> Outcome:
    """A query whose batches are each merged into the table, as ``foreachBatch`` is commonly used."""
    session, table = site.spark.newSession(), str(directory / "newest")
    began_s = time.monotonic()
    stream = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source.path))
    DeltaTable.createIfNotExists(session).location(table).addColumns(stream.schema).execute()

    def merge(frame: DataFrame, batch: int) -> None:
        found = DeltaTable.forPath(frame.sparkSession, table).alias("table")
        into = found.merge(newest_of(frame, "key").alias("rows"), "table.key = rows.key")
        into.whenMatchedUpdateAll("rows.id > table.id").whenNotMatchedInsertAll().execute()

    writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return outcome(time.monotonic() - began_s, [json.loads(progress.json) for progress in query.recentProgress])


def newest_of(frame: DataFrame, key: str) -> DataFrame:
    """Returns the row with the highest id of each key."""
    newest_first = Window.partitionBy(key).orderBy(F.desc("id"))
    return frame.withColumn("place", F.row_number().over(newest_first)).where("place = 1").drop("place")


def _checked(site: Site, source: Input, way: Callable[[Site, Input, Path], Outcome]) -> Outcome:
    """A run whose table has the newest row of each key, and nothing else."""
    directory = site.new()
    outcome = way(site, source, directory)
    expected = site.spark.read.format("delta").load(str(source.path)).groupBy("key").agg(F.max("id").alias("id"))
    found = site.spark.read.format("delta").load(str(directory / "newest")).select("key", "id")
    if site.rows(directory / "newest") != expected.count() or not expected.exceptAll(found).isEmpty():
        raise AssertionError(f"{directory} has other rows than a batch query gives")
    shutil.rmtree(directory)
    return outcome
