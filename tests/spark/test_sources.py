"""Kinds of bounded sources: files of any format and name, Delta tables, and empty inputs."""

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.pins import FilesPin
from spark_jobs.storage.open import open_place
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count

pytestmark = pytest.mark.spark

SCHEMA = "payment long, paid_at timestamp, payer string, amount int"
NAMES = ["plain", "with a space", "100%25 sure", "a+b=c&d", "grüße", "day=2024-03-01"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with odd names in sub-directories with odd names, in three formats, and files that Spark ignores."""
    directory = tmp_path_factory.mktemp("source files 50%")
    rows = inputs.payments()
    size = len(rows) // len(NAMES) + 1
    for number, name in enumerate(NAMES):
        part = rows.iloc[number * size : (number + 1) * size]
        for format in ("json", "csv", "parquet"):
            (directory / format / name / "deeper").mkdir(parents=True)
            (directory / format / name / "_hidden").write_bytes(b"not data")
        inputs.write_parquet(directory / "parquet" / name, part, 2)
        text = part.assign(paid_at=part["paid_at"].dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        text.to_json(directory / "json" / name / f"{name}.json", orient="records", lines=True)
        text.to_csv(directory / "csv" / name / "deeper" / f"{name}.csv", index=False)
    inputs.write_parquet(directory / "flat", rows, 4)
    (directory / "flat" / "below").mkdir()
    (directory / "flat" / "notes.txt").write_text("not data either")
    return directory


@pytest.fixture(scope="module")
def site(spark: SparkSession, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(spark, tmp_path_factory.mktemp("sources"))
    pipeline = Pipeline("sources")
    inputs.append(directory / "empty", inputs.payments(10).iloc[:0])

    def stage(name: str) -> None:
        @pipeline.stage(sink=DeltaSink(str(site.tables / name)), inputs={"rows": f"{name}_rows"}, name=name)
        def copy(rows: DataFrame) -> DataFrame:
            return rows.select("payment", "paid_at", "payer", "amount")

    @pipeline.source(bounded=True, event_time="paid_at")
    def json_rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true").json(str(directory / "json"))

    @pipeline.source(bounded=True)
    def csv_rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", True).option("header", True)
        return reader.option("maxFilesPerTrigger", "4").csv(str(directory / "csv"))

    @pipeline.source(bounded=True)
    def parquet_rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).parquet(str(directory / "parquet" / "*"))

    @pipeline.source(bounded=True)
    def flat_rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option("pathGlobFilter", "*.parquet").option("maxFilesPerTrigger", 3)
        return reader.parquet(str(directory / "flat"))

    @pipeline.source(bounded=True, event_time="paid_at")
    def empty(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(directory / "empty"))

    for name in ("json", "csv", "parquet", "flat"):
        stage(name)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "of_nothing")))
    def of_nothing(empty: DataFrame) -> DataFrame:
        return empty.groupBy(F.window("paid_at", "1 hour")).count()

    @pipeline.stage(sink=DeltaSink(str(site.tables / "nothing_left")))
    def nothing_left(json_rows: DataFrame) -> DataFrame:
        return json_rows.where("amount < 0").select("paid_at", "amount")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "of_nothing_left")))
    def of_nothing_left(nothing_left: DataFrame) -> DataFrame:
        return nothing_left.groupBy(F.window("paid_at", "1 hour")).count()

    @pipeline.stage(sink=DeltaSink(str(site.tables / "with_nothing")))
    def with_nothing(empty: DataFrame, flat_rows: DataFrame) -> DataFrame:
        return flat_rows.select("payment").union(empty.select("payment"))

    site.run(pipeline)
    return site


@pytest.mark.parametrize("sink", ["json", "csv", "parquet", "flat"])
def test_files_of_every_name_are_read_once(site: Site, views: SparkSession, sink: str) -> None:
    assert_same(public(site.tables / sink), answer(views.sql("SELECT payment, paid_at, payer, amount FROM payments")))


@pytest.mark.parametrize(("source", "files"), {"json_rows": 6, "csv_rows": 6, "parquet_rows": 12, "flat_rows": 4}.items())
def test_the_pin_names_exactly_the_files_that_count(site: Site, source: str, files: int) -> None:
    (pin,) = site.manifest().inputs[InputName(source)]
    assert isinstance(pin, FilesPin)
    assert len(pin.files) == files
    for file in pin.files:
        assert Path(unquote(file.path.removeprefix("file://"))).stat().st_size == file.size_bytes


@pytest.mark.parametrize("sink", ["of_nothing", "nothing_left", "of_nothing_left"])
def test_an_input_without_rows_ends_with_an_empty_table(site: Site, sink: str) -> None:
    assert public_count(site.tables / sink) == 0
    assert site.manifest().stages[StageName(sink)].drained


def test_an_input_without_rows_does_not_hold_back_another(site: Site) -> None:
    assert public_count(site.tables / "with_nothing") == inputs.ROWS


def test_an_old_file_that_arrives_in_a_later_round_is_read(site: Site, tmp_path: Path) -> None:
    """Spark's file source forgets files that are a week older than its newest one. It then skips them silently."""
    daily = Site(site.spark, tmp_path)
    pipeline = Pipeline("old_files", on_end="suspend")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").json(str(tmp_path / "in"))

    @pipeline.stage(sink=DeltaSink(str(daily.tables / "copy")))
    def copy(numbers: DataFrame) -> DataFrame:
        return numbers

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "new.json").write_text(json.dumps({"n": 1}))
    daily.run(pipeline)
    (tmp_path / "in" / "old.json").write_text(json.dumps({"n": 2}))
    month_ago = pd.Timestamp.now().timestamp() - 30 * 86_400
    _touch(tmp_path / "in" / "old.json", month_ago)
    daily.run(pipeline)
    assert sorted(public(daily.tables / "copy")) == [(1,), (2,)]


def _touch(path: Path, at: float) -> None:
    import os

    os.utime(path, (at, at))


# By day the case in S3 reads, pins and refuses in the same way. Spark's clients of the other stores write tables in
# tests/spark/test_conditional_log_store.py, and test_files_of_every_name_are_read_once reads the other formats on a disk.
@pytest.mark.parametrize(
    ("place", "format_"),
    [
        pytest.param("store_site", "parquet", marks=pytest.mark.stores),
        pytest.param("store_site", "json", marks=[pytest.mark.stores, pytest.mark.nightly]),
        pytest.param("azure_site", "csv", marks=[pytest.mark.azure, pytest.mark.nightly]),
        pytest.param("hdfs_site", "json", marks=[pytest.mark.hdfs, pytest.mark.nightly]),
    ],
)
def test_a_folder_in_a_store_is_read_round_by_round_and_a_replaced_file_is_refused(
    place: str, format_: str, request: pytest.FixtureRequest
) -> None:
    site: Site = request.getfixturevalue(place)
    spark, folder = site.spark, site.table("in")
    pipeline, files = Pipeline("folders", on_end="suspend"), open_place(folder)

    @pipeline.source(bounded=True, event_time="paid_at", watermark_delay="3 days")
    def payments(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("recursiveFileLookup", True).format(format_).load(folder)

    def copy(payments: DataFrame) -> DataFrame:
        return payments

    def hourly(payments: DataFrame) -> DataFrame:
        return payments.groupBy(F.window("paid_at", "1 hour").alias("hour")).agg(F.sum("amount").alias("amount"))

    def deliver(day: int) -> None:
        rows = spark.createDataFrame(inputs.payments(40, days=2, seed=day), SCHEMA)
        rows.coalesce(1).write.format(format_).save(f"{folder}/day-{day}")

    for stage in (copy, hourly):
        pipeline.stage(sink=DeltaSink(site.table(stage.__name__)))(stage)
    deliver(1)
    site.run(pipeline, run_id="day 1")
    assert public_count(site.table("copy")) == 40
    assert not site.manifest().drained

    (read,) = (path for path in files.paths("day-1") if path.endswith(format_))
    kept = files.read(read)
    files.replace(read, kept * 2)
    with pytest.raises(RejectedError, match="1 files that were changed since they were read, such as .*/in/day-1/"):
        site.run(pipeline, run_id="day 2")
    assert public_count(site.table("copy")) == 40
    files.delete(read)

    deliver(2)
    site.run(pipeline, run_id="day 2", on_end="drain")
    assert site.manifest().drained
    files.create(read, kept)
    all_files = spark.read.schema(SCHEMA).option("recursiveFileLookup", True).format(format_).load(folder)
    assert_same(public(site.table("copy")), answer(copy(all_files)))
    assert_same(public(site.table("hourly")), answer(hourly(all_files.where("paid_at IS NOT NULL"))))


@pytest.mark.parametrize("name", ["2026 [1]", "{old}", "day[0-9]/new*"])
def test_a_folder_whose_name_is_a_pattern_for_other_names_is_refused_and_read_when_it_is_escaped(
    site: Site, tmp_path: Path, name: str
) -> None:
    """Spark would find no file, and the run would succeed without a row."""
    daily = Site(site.spark, tmp_path)
    folder, paths = tmp_path / "in" / name, [str(tmp_path / "in" / name)]
    folder.mkdir(parents=True)
    (folder / "0.json").write_text('{"n": 1}\n')
    pipeline = Pipeline("patterns", on_end="suspend")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").json(paths[0])

    pipeline.stage(name="copy", sink=DeltaSink(str(daily.tables / "copy")))(lambda numbers: numbers)
    with pytest.raises(InvalidPipelineError, match="takes the name as a pattern for other names") as refused:
        daily.run(pipeline)
    paths[0] = refused.value.remedy.removeprefix("Escape the name: ").removesuffix(". Or rename it.")
    daily.run(pipeline)
    assert public(daily.tables / "copy") == Counter([(1,)])
    (folder / "1.json").write_text('{"n": 2}\n')
    daily.run(pipeline)
    assert public(daily.tables / "copy") == Counter([(1,), (2,)])
