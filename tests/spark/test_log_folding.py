"""Spark streams from private logs that are folded and trimmed under it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime import log_folding
from spark_jobs.runtime.log_folding import Consumer, fold_consumed, trim
from spark_jobs.runtime.private_log import PrivateLog, StagedBatch
from spark_jobs.runtime.session import DeltaJvm, session_for_run
from spark_jobs.runtime.spark_log import SparkLog
from tests.spark.conftest import Site
from tests.support.systems import quick

pytestmark = pytest.mark.spark

ROWS = 10
NO_TABLE_PROPERTIES = ""
EVERY_FEATURE = (
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.checkpointPolicy' = 'v2', 'delta.enableChangeDataFeed' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true', 'delta.enableRowTracking' = 'true', 'delta.enableTypeWidening' = 'true')"
)


class Staged:
    """A log into which batches of ten ids are staged, and a query that reads it."""

    def __init__(self, spark: SparkSession, root: Path, properties: str = NO_TABLE_PROPERTIES) -> None:
        self.spark, self.root = session_for_run(spark), root
        self.table = root / "table of rows"
        self.spark.sql(f"CREATE TABLE delta.`{self.table}` (id LONG, part STRING) USING delta PARTITIONED BY (part) {properties}")
        self._delta = DeltaJvm(self.spark)
        _, metadata, protocol = self._delta.snapshot(str(self.table))
        files = quick(root)
        self.log = PrivateLog(files, "log", self.table.as_uri())
        self.log.begin(metadata, protocol, {})
        self.consumer = Consumer(SparkLog(files, "query"), 0)
        self.batches = 0
        self.consumed: list[int] = []

    def stage(self, batches: int) -> None:
        for _ in range(batches):
            batch, self.batches = self.batches, self.batches + 1
            rows = self.spark.range(batch * ROWS, (batch + 1) * ROWS, numPartitions=1).selectExpr(
                "id", "concat('p ', id % 2) part"
            )
            adds = self._delta.write_files(rows, str(self.table), f"prefix-{batch}-")
            self.log.append(StagedBatch(BatchId(batch), "", ROWS, 0, {}, tuple(adds)))

    def consume(self, after_batch: Callable[[], object] = lambda: None, versions_per_batch: int = 2) -> None:
        """Starts the query, lets it come to the log's end, and ends it."""

        def take(frame: DataFrame, batch: int) -> None:
            self.consumed.extend(row.id for row in frame.select("id").collect())
            after_batch()

        reader = self.spark.readStream.format("delta").option("startingVersion", 0)
        stream = reader.option("maxFilesPerTrigger", 2 * versions_per_batch).load(self.log.url).writeStream
        query = (
            stream.foreachBatch(take).option("checkpointLocation", str(self.root / "query")).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    def fold(self) -> None:
        """After each batch, as far as it goes."""
        fold_consumed(self.log, [self.consumer], batches_min=1)
        trim(self.log, [self.consumer], BatchId(self.log.folded() - 1), None)

    def all_rows(self) -> list[int]:
        """The answer of a batch query over the staged files themselves."""
        files = [str(path) for path in self.table.rglob("prefix-*.parquet")]
        return sorted(value for row in self.spark.read.parquet(*files).collect() for value in row if isinstance(value, int))


@pytest.mark.parametrize("properties", [NO_TABLE_PROPERTIES, EVERY_FEATURE], ids=["plain", "every feature"])
def test_a_consumer_reads_every_row_once_while_its_log_is_folded_and_trimmed(
    spark: SparkSession, tmp_path: Path, properties: str
) -> None:
    site = Staged(spark, tmp_path, properties)
    for _ in range(3):
        site.stage(4)
        site.consume(after_batch=site.fold)
        site.fold()
    assert sorted(site.consumed) == site.all_rows() == list(range(12 * ROWS))
    assert site.log.oldest() > 0
    versions = {path.name for path in (tmp_path / "log/_delta_log").glob("*.json")}
    assert len(versions) < 8
    assert f"{1:020d}.json" not in versions


def test_a_stream_that_begins_after_a_fold_fails_instead_of_missing_rows(spark: SparkSession, tmp_path: Path) -> None:
    site = Staged(spark, tmp_path)
    site.stage(6)
    for last in (2, 4):
        site.log.fold(BatchId(last))
    with pytest.raises(StreamingQueryException, match="DELTA_MISSING_FILES_UNEXPECTED_VERSION"):
        site.consume()
    assert site.consumed == []


@pytest.mark.parametrize("behind", [1, 0], ids=["past what it has not read", "past its last committed batch"])
def test_without_the_guard_a_consumer_that_starts_again_would_fail(spark: SparkSession, tmp_path: Path, behind: int) -> None:
    site = Staged(spark, tmp_path)
    site.stage(2)
    site.consume()
    site.stage(6)
    site.consume(versions_per_batch=9)
    ends = [site.consumer.spark_log.offsets(BatchId(n)).sources[0] for n in range(site.consumer.spark_log.last_commit() + 1)]
    read_up_to = [json.loads(line)["reservoirVersion"] for line in ends]
    site.stage(6)
    assert site.consumer.reads_from() == read_up_to[-2] < read_up_to[-1]
    past = read_up_to[-1] + 2 * behind
    for last in (past - 3, past - 2):  # the second fold deletes what the first has folded
        site.log.fold(BatchId(last))
    with pytest.raises(StreamingQueryException, match="DELTA_MISSING_FILES_UNEXPECTED_VERSION"):
        site.consume()


DAYS = 4


def _chain(site: Site) -> Pipeline:
    """A stage without a sink, one with a sink that is consumed, and a last one."""
    pipeline = Pipeline("trimmed", on_end="suspend")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "numbers"))

    @pipeline.stage(max_files_per_trigger=1)
    def even(numbers: DataFrame) -> DataFrame:
        return numbers.where("id % 2 = 0")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "doubled")), max_files_per_trigger=1)
    def doubled(even: DataFrame) -> DataFrame:
        return even.selectExpr("id * 2 AS id")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")), max_files_per_trigger=1)
    def copied(doubled: DataFrame) -> DataFrame:
        return doubled

    return pipeline


def test_days_of_rounds_leave_bounded_logs_and_channels_and_every_public_row(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folding, "FOLD_BATCHES", 1)
    sizes = []
    for day in range(DAYS):
        for part in range(3):
            first = (3 * day + part) * ROWS
            frame = spark.range(first, first + ROWS, numPartitions=1)
            frame.write.format("delta").mode("append").save(str(site.home.parent / "numbers"))
        site.run(_chain(site), run_id=f"day {day}")
        expected = [2 * id for id in range(0, 3 * ROWS * (day + 1), 2)]
        for sink in ("doubled", "copied"):
            rows = spark.read.format("delta").load(str(site.tables / sink)).collect()
            assert sorted(row.id for row in rows) == expected
        channel = [path.name for path in site.home.glob("channels/*/even/*.parquet")]
        logs = [path for path in site.home.glob("work/*/stages/*/log/**/*") if path.is_file() and not path.name.startswith(".")]
        sizes.append((len(channel), len(logs)))
    assert sizes[-1] == sizes[-2], "from the third day on nothing grows"
    logs_at = {path.name: path / "log" for path in site.home.glob("work/*/stages/*")}
    for name, directory in logs_at.items():
        log = PrivateLog(quick(directory.parent), "log", "")
        assert log.oldest() > 0, name
