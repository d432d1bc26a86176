"""Spark streams from private logs that are folded and trimmed at the same time."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import BatchId
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.log_folding import Consumer, fold_consumed, trim
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.runtime.stages import staging
from spark_jobs.storage.open import open_files, open_place
from spark_jobs.storage.table_uris import table_uri
from tests.spark.conftest import Site
from tests.support.places import in_a_store_too
from tests.support.systems import quick

pytestmark = pytest.mark.spark

ROWS = 10
NO_TABLE_PROPERTIES = ""
EVERY_FEATURE = (
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.checkpointPolicy' = 'v2', 'delta.enableChangeDataFeed' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true', 'delta.enableRowTracking' = 'true', 'delta.enableTypeWidening' = 'true')"
)


class Staged:
    """A log into which batches of ten ids are staged, and a query that reads it.

    Args:
        spark: The session.
        root: The directory of the log, of its table and of the query's checkpoints.
        properties: The properties of the table, as SQL declares them.
        store: A place in a store for the log and its table, which then have no query. None: the directory.
    """

    def __init__(self, spark: SparkSession, root: Path, properties: str = NO_TABLE_PROPERTIES, store: str | None = None) -> None:
        self.spark, self.root = session_for_run(spark), root
        self.table = f"{store or root}/table of rows"
        self.spark.sql(f"CREATE TABLE delta.`{self.table}` (id LONG, part STRING) USING delta PARTITIONED BY (part) {properties}")
        self._delta = DeltaJvm(self.spark)
        _, metadata, protocol = self._delta.snapshot(self.table)
        self.files = open_place(store) if store else quick(root)
        self.log = PrivateLog(self.files, "log", table_uri(self.table))
        self.log.begin(metadata, protocol, None)
        self.consumer = Consumer(SparkLog(self.files, "query"), 0)
        self.batches = 0
        self.consumed: list[int] = []

    def stage(self, batches: int) -> None:
        for _ in range(batches):
            batch, self.batches = self.batches, self.batches + 1
            rows = self.spark.range(batch * ROWS, (batch + 1) * ROWS, numPartitions=1).selectExpr(
                "id", "concat('p ', id % 2) part"
            )
            adds = self._delta.write_files(rows, self.table, f"prefix-{batch}-")
            self.log.append(StagedBatch(BatchId(batch), "", ROWS, 0, {}, tuple(adds)))

    def consume(self, after_batch: Callable[[], object] = lambda: None, versions_per_batch: int = 2) -> None:
        """Starts the query, lets it read to the log's end, and ends it."""

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
        """Folds the log after each batch as far as possible."""
        fold_consumed(self.log, [self.consumer], batches_min=1)
        table = Path(self.table)
        named = {str(path.relative_to(table)) for path in table.rglob("prefix-*.parquet")}
        trim(self.log, [self.consumer], BatchId(self.log.folded() - 1), quick(table), named)

    def all_rows(self) -> list[int]:
        """Returns the ids of a batch query over the staged files themselves."""
        files = [str(path) for path in Path(self.table).rglob("prefix-*.parquet")]
        return sorted(value for row in self.spark.read.parquet(*files).collect() for value in row if isinstance(value, int))


@pytest.mark.parametrize(
    "properties",
    [pytest.param(NO_TABLE_PROPERTIES, id="plain", marks=pytest.mark.nightly), pytest.param(EVERY_FEATURE, id="every feature")],
)
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


@in_a_store_too
def test_delta_takes_the_schema_of_a_growing_log_from_one_checksum_file(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    staged = Staged(spark, tmp_path, store=site.store)
    staged.log.write_checksums()
    staged.stage(3)
    checksums = [name for name in staged.files.names("log/_delta_log") if name.endswith(".crc") and not name.startswith(".")]
    assert checksums == [f"{version:020}.crc" for version in (1, 2, 3)]
    whole_log = staged.spark.read.format("delta").load(staged.log.url)
    assert sorted(row.id for row in whole_log.collect()) == list(range(3 * ROWS))
    delta, nothing = DeltaJvm(staged.spark), spark._jvm.scala.Option.apply(None)  # type: ignore[union-attr]
    whole = delta.log(staged.log.url).update(False, nothing, nothing)
    none_else = spark._jvm.PythonUtils.toScalaMap({})  # type: ignore[union-attr]
    assert whole.validateChecksum(none_else), "Delta counts the files in the log, and finds as many"
    for version in range(3):
        staged.files.replace(f"log/_delta_log/{version:020}.json", b"not a version")
    delta.forget(staged.log.url)
    version, metadata, protocol = delta.snapshot(staged.log.url)
    found = staged.log.identity()
    assert (version, metadata["id"], metadata["schemaString"]) == (3, staged.log.table_id, found.metadata["schemaString"])
    assert protocol == found.protocol


def test_a_stream_that_begins_after_a_fold_fails_instead_of_missing_rows(spark: SparkSession, tmp_path: Path) -> None:
    site = Staged(spark, tmp_path)
    site.stage(6)
    for last in (2, 4):
        site.log.fold(BatchId(last))
    with pytest.raises(StreamingQueryException, match="DELTA_MISSING_FILES_UNEXPECTED_VERSION"):
        site.consume()
    assert site.consumed == []


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(1, id="folded past an unread batch"),
        pytest.param(0, id="folded past its last committed batch", marks=pytest.mark.nightly),
    ],
)
def test_a_consumer_that_starts_again_would_fail_without_the_guard(spark: SparkSession, tmp_path: Path, behind: int) -> None:
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
    for last in (past - 3, past - 2):  # the second fold deletes the result of the first one
        site.log.fold(BatchId(last))
    with pytest.raises(StreamingQueryException, match="DELTA_MISSING_FILES_UNEXPECTED_VERSION"):
        site.consume()


DAYS = 4


def _chain(site: Site) -> Pipeline:
    """Declares a stage without a sink, and a stage that consumes it."""
    pipeline = Pipeline("trimmed", on_end="suspend")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "numbers"))

    @pipeline.stage
    def even(numbers: DataFrame) -> DataFrame:
        return numbers.where("id % 2 = 0")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "doubled")), max_files_per_trigger=1)
    def doubled(even: DataFrame) -> DataFrame:
        return even.selectExpr("id * 2 AS id")

    return pipeline


@dataclass(frozen=True)
class Day:
    """The state of the pipeline after a day."""

    doubled: list[int]
    channel_files: int
    log_files: int
    oldest: dict[str, int]
    """For each stage: the oldest batch in its log."""


def _live_a_day(site: Site, day: int, **options: Any) -> Day:
    for part in range(2):
        first = (2 * day + part) * ROWS
        frame = site.spark.range(first, first + ROWS, numPartitions=1)
        frame.write.format("delta").mode("append").save(str(site.home.parent / "numbers"))
    site.run(_chain(site), run_id=f"day {day}", **options)
    return Day(
        doubled=_doubled(site),
        channel_files=len(list(site.home.glob("channels/*/even/*.parquet"))),
        log_files=len([path for path in site.home.glob("work/*/stages/*/log/**/[!.]*") if path.is_file()]),
        oldest={path.name: PrivateLog(quick(path), "log", "").oldest() for path in site.home.glob("work/*/stages/*")},
    )


def _doubled(site: Site) -> list[int]:
    return sorted(row.id for row in site.spark.read.format("delta").load(str(site.tables / "doubled")).collect())


def _answer(days: int) -> list[int]:
    return [2 * number for number in range(0, 2 * ROWS * days, 2)]


@pytest.fixture(scope="module")
def suspended(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, list[Day]]:
    """A pipeline after days of rounds, folded after every batch. The last day is not published."""
    site = Site(spark, tmp_path_factory.mktemp("days"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "fold_consumed", partial(fold_consumed, batches_min=1))
        days = [_live_a_day(site, day, publish="external" if day == DAYS - 1 else None) for day in range(DAYS)]
    return site, days


def test_the_rows_of_each_day_are_public_although_logs_were_trimmed(suspended: tuple[Site, list[Day]]) -> None:
    _, days = suspended
    assert [day.doubled for day in days] == [_answer(min(number, DAYS - 1)) for number in range(1, DAYS + 1)]


def test_logs_and_channels_stay_bounded_over_many_days(suspended: tuple[Site, list[Day]]) -> None:
    site, days = suspended
    assert not list(site.home.glob("work/*/stages/*/log/_delta_log/*.crc")), "the log has ended when it is read"
    assert (days[-1].channel_files, days[-1].log_files) == (days[-2].channel_files, days[-2].log_files)
    assert all(oldest > 0 for oldest in days[-1].oldest.values())


def test_a_checkpoint_whose_manifest_is_damaged_is_made_again_from_its_parent(suspended: tuple[Site, list[Day]]) -> None:
    site, _ = suspended
    (site.home / f"manifests/{DAYS}.json").write_bytes(b"{}")
    site.run(_chain(site), run_id="again", publish="external")
    again = site.manifest()
    assert (again.checkpoint, again.parent) == (DAYS + 1, DAYS - 1)
    publish(open_files(str(site.home)), again.checkpoint, policy=Publish.EXTERNAL)
    assert _doubled(site) == _answer(DAYS)
