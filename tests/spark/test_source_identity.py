"""A source differs from the one that the checkpoint has read. It is refused before any row is staged, or read as new on request."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.command_line import spark_jobs
from tests.support.replaced_sources import _TOPICS, Table, Topic
from tests.support.running import Running

pytestmark = pytest.mark.spark


class OtherTable(Table):
    """A Delta table. A parameter then names another one."""

    def make_anew(self) -> None:
        self.path = self.root / "in-2"


class FromTheFirstVersion(Table):
    """A Delta table that is read version by version."""

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("startingVersion", 0).load(str(self.path))


class NamedTable(Table):
    """A name in Spark's catalog that leads to another table."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.spark: SparkSession = request.getfixturevalue("spark")
        request.addfinalizer(lambda: self.spark.sql("DROP TABLE IF EXISTS numbers_by_name"))

    def add(self, *numbers: int) -> None:
        super().add(*numbers)
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS numbers_by_name USING delta LOCATION '{self.path}'")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.table("numbers_by_name")

    def make_anew(self) -> None:
        self.spark.sql("DROP TABLE numbers_by_name")
        self.path = self.root / "in-2"


class JsonFolder:
    """A folder of JSON files. A parameter then names another folder, whose files are a month older."""

    other = "reads another folder"

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.root: Path = request.getfixturevalue("tmp_path")
        self.path, self._files = self.root / "in", itertools.count()
        self.path.mkdir()

    def add(self, *numbers: int) -> None:
        (self.path / f"{next(self._files)}.json").write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(self.path))

    def make_anew(self) -> None:
        self.path, self._files = self.root / "in-2", itertools.count()
        self.path.mkdir()


class ParquetFolder(JsonFolder):
    """The same with Parquet files, all in one batch."""

    def add(self, *numbers: int) -> None:
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), self.path / f"{next(self._files)}.parquet")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").parquet(str(self.path))


class OtherTopic(Topic):
    """A Kafka topic. A parameter then names another one."""

    other = "reads other topics"

    def make_anew(self) -> None:
        self.name = f"identity-{next(_TOPICS)}"
        self.kafka.create_topic(self.name, 2)


Kind = Callable[[pytest.FixtureRequest], Any]
KINDS: list[Kind] = [Table, OtherTable, FromTheFirstVersion, NamedTable, JsonFolder, ParquetFolder, Topic, OtherTopic]
EVERY_DAY: list[Kind] = [Table, Topic]
AT_NIGHT = [pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS if kind not in EVERY_DAY]
"""Each differs from an everyday kind in how a stream is written, not in what is compared."""


def copying(site: Site, source: Any, *, bounded: bool = True) -> Pipeline:
    """Declares a copy without state, and counts that are kept in a state."""
    pipeline = Pipeline(
        "copy",
        on_end="suspend" if bounded else "drain",
        checkpoint=CheckpointSettings(interval="1 second" if not bounded else "1 hour"),
    )

    @pipeline.source(name="rows", bounded=bounded)
    def rows(spark: SparkSession) -> DataFrame:
        found: DataFrame = source.stream(spark)
        return found

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    @pipeline.stage(sink=DeltaSink(str(site.tables / "counts"), mode="complete"))
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy((F.col("n") % 2).alias("odd")).count()

    return pipeline


def copied(site: Site) -> list[int]:
    return sorted(row[0] for row in public(site.tables / "copy").elements())


def batches(site: Site) -> list[str]:
    return sorted(str(path) for path in site.home.glob("work/*/stages/*/checkpoint/offsets/[0-9]*"))


def counted(numbers: Iterable[int]) -> Counter[tuple[Any, ...]]:
    """Returns the expected counts, computed independently."""
    return Counter(Counter(n % 2 for n in numbers).items())


@pytest.mark.parametrize("kind", [*EVERY_DAY, *AT_NIGHT])
def test_another_source_is_refused_and_taken_as_new_on_request(site: Site, request: pytest.FixtureRequest, kind: Kind) -> None:
    source = kind(request)
    pipeline = copying(site, source)
    for n in range(5):
        source.add(n)
    site.run(pipeline, run_id="day 1")
    source.make_anew()
    source.add(100)
    source.add(101)
    before = batches(site)
    with pytest.raises(RejectedError, match=f"Source 'rows' {source.other}") as refused:
        site.run(pipeline, run_id="day 2")
    assert "--new-source rows" in refused.value.remedy
    assert batches(site) == before
    assert copied(site) == list(range(5))
    site.run(pipeline, run_id="day 2", new_sources=["rows"])
    assert copied(site) == [*range(5), 100, 101]
    assert public(site.tables / "counts") == counted([*range(5), 100, 101])
    source.add(102)
    site.run(pipeline, run_id="day 2", new_sources=["rows"])
    assert copied(site) == [*range(5), 100, 101], "a run begins it anew once"
    site.run(pipeline, run_id="day 3")
    assert copied(site) == [*range(5), 100, 101, 102]
    assert public(site.tables / "counts") == counted([*range(5), 100, 101, 102])


@pytest.mark.parametrize("kind", [Topic, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in (Table, JsonFolder))])
def test_a_running_pipeline_is_not_started_on_another_source(site: Site, request: pytest.FixtureRequest, kind: Kind) -> None:
    source = kind(request)
    pipeline = copying(site, source, bounded=False)
    source.add(0)
    source.add(1)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        stopped = spark_jobs("stop", "--home", site.home)
        assert stopped.exit_code == 0, stopped.output
        running.stopped()
    source.make_anew()
    source.add(100)
    with Running(site.spark, pipeline, site.home) as running:
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert f"Source 'rows' {source.other}" in error.failed
    for more in ([], [101]):
        for n in more:
            source.add(n)
        expected = [0, 1, 100, *more]
        options = StartOptions() if more else StartOptions(new_sources=("rows",))
        with Running(site.spark, pipeline, site.home, options=options) as running:
            running.until(lambda: public_count(site.tables / "copy") == len(expected))  # noqa: B023 - waited for at once
            running.until(lambda: public(site.tables / "counts") == counted(expected))  # noqa: B023
        assert copied(site) == expected


def test_an_interrupted_round_goes_on_from_its_checkpoint_with_a_new_source(site: Site, request: pytest.FixtureRequest) -> None:
    """The other source of the round keeps its pinned end."""
    source, kept, flag = Table(request), JsonFolder(request), site.home.parent / "fail"
    source.path = site.home.parent / "table"
    pipeline = Pipeline("two", on_end="suspend")
    pipeline.source(name="rows", bounded=True)(lambda spark: source.stream(spark))
    pipeline.source(name="others", bounded=True)(lambda spark: kept.stream(spark))

    def fail(n: int) -> int:
        if n >= 10 and flag.exists():
            raise ValueError("failed as told")
        return n

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame, others: DataFrame) -> DataFrame:
        return rows.union(others).select(F.udf(fail, "long", useArrow=False)("n").alias("n"))

    source.add(0)
    kept.add(1)
    site.run(pipeline, run_id="day 1")
    source.add(10)
    kept.add(11)
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="day 2")
    flag.unlink()
    source.make_anew()
    source.add(100)
    kept.add(12)
    with pytest.raises(RejectedError, match="reads another Delta table"):
        site.run(pipeline, run_id="day 2")
    site.run(pipeline, run_id="day 2", new_sources=["rows"])
    assert copied(site) == [0, 1, 11, 100], "10 has gone with its table; 12 came after the round had begun"
    site.run(pipeline, run_id="day 3")
    assert copied(site) == [0, 1, 11, 12, 100]


def test_a_savepoint_after_a_drain_goes_on_with_a_new_source(site: Site, request: pytest.FixtureRequest) -> None:
    """The test follows two remedies together: that of a drained pipeline and that of another source."""
    source, savepoint = Table(request), site.home.parent / "savepoint"
    pipeline = Pipeline("windows", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.source(bounded=False, event_time="at", watermark_delay="1 second")
    def rows(spark: SparkSession) -> DataFrame:
        return source.stream(spark).withColumn("at", F.timestamp_seconds("n"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "windows")))
    def windows(rows: DataFrame) -> DataFrame:
        counts = rows.groupBy(F.window("at", "10 seconds").alias("window")).count()
        return counts.select(F.col("window.start").cast("long").alias("begin"), "count")

    def drained(options: StartOptions | None = None, *target: object) -> None:
        with Running(site.spark, pipeline, site.home, options=options) as running:
            running.until(lambda: running.status and running.status.stages[StageName("windows")].rows_in >= len(numbers))
            assert (told := spark_jobs("stop", "--home", site.home, "--drain", *target)).exit_code == 0, told.output
            running.stopped()

    numbers = [0, 1, 12]
    source.add(*numbers)
    drained(None, "--target", savepoint)
    source.make_anew()
    numbers = [13, 25]
    source.add(*numbers)
    restore = RestoreFrom(savepoint=open_files(str(savepoint)).url, allow_drained=True)
    with Running(site.spark, pipeline, site.home, options=StartOptions(restore=restore)) as running:
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "--new-source rows" in error.remedy
    drained(StartOptions(restore=restore, new_sources=("rows",)))
    assert sorted(public(site.tables / "windows").elements()) == [(0, 2), (10, 1), (10, 1), (20, 1)], "13 makes a row of its own"


def test_a_moved_table_is_the_same_source(site: Site, request: pytest.FixtureRequest) -> None:
    source = Table(request)
    pipeline = copying(site, source)
    source.add(0)
    site.run(pipeline)
    source.move()
    source.add(1)
    site.run(pipeline)
    assert copied(site) == [0, 1]
    (known,) = site.manifest().sources[InputName("rows")]
    assert known.format == "delta"
    assert known.path == str(source.path)


def test_only_a_source_can_be_taken_as_new(site: Site, request: pytest.FixtureRequest) -> None:
    source = Table(request)
    source.add(0)
    with pytest.raises(InvalidParameterError, match="no source or static input 'row'"):
        site.run(copying(site, source), new_sources=["row"])
