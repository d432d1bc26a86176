"""Pinned files change while a round is interrupted. The run fails by name, and goes on when the files are back."""

import csv
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, PermanentFailureError, RejectedError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import KnownDelta
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import observed_by
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.meanwhile import Meanwhile
from tests.support.running import Running

pytestmark = pytest.mark.spark

SCHEMA = "n long"


def write_json(path: Path, numbers: Sequence[int]) -> None:
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))


def write_csv(path: Path, numbers: Sequence[int]) -> None:
    with path.open("w") as file:
        csv.writer(file).writerows([n] for n in numbers)


def write_parquet(path: Path, numbers: Sequence[int]) -> None:
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)


def write_orc(path: Path, numbers: Sequence[int]) -> None:
    pyarrow.orc.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), str(path))


FORMATS = {"json": write_json, "csv": write_csv, "parquet": write_parquet, "orc": write_orc}


def vanish(path: Path) -> str:
    path.unlink()
    return "was missing"


def move_away(path: Path) -> str:
    path.rename(path.parent.parent / path.name)
    return "was missing"


def shrink(path: Path) -> str:
    """Removes the last row of a file. A reader of the file meets no error."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    return "bytes, but had"


def replace(path: Path) -> str:
    write = FORMATS[path.suffix[1:]]
    write(path, range(1_000, 1_200))
    return "bytes, but had"


CASES = [
    ("json", vanish, 1),
    ("csv", shrink, 1),
    ("parquet", replace, 2),
    pytest.param("parquet", vanish, None, marks=pytest.mark.nightly),
    pytest.param("orc", move_away, 2, marks=pytest.mark.nightly),
    pytest.param("json", shrink, None, marks=pytest.mark.nightly),
    pytest.param("orc", replace, 1, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("format_", "change", "files_per_batch"), CASES)
def test_a_file_that_was_changed_after_its_pin_fails_the_run_by_name_until_it_is_back(
    site: Site, format_: str, change: Callable[[Path], str], files_per_batch: int | None
) -> None:
    folder, flag, kept = site.home.parent / "in box", site.home.parent / "fail", site.home.parent / "kept"
    folder.mkdir()
    for number in range(6):
        FORMATS[format_](folder / f"part {number}.{format_}", range(10 * number, 10 * number + 5))
    pipeline = Pipeline("files", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).format(format_)
        return (reader.option("maxFilesPerTrigger", files_per_batch) if files_per_batch else reader).load(str(folder))

    def fail(n: int) -> int:
        if n >= 20 and flag.exists():
            raise ValueError("failed as told")
        return n

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(F.udf(fail, "long", useArrow=False)("n").alias("n"))

    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="only")
    flag.unlink()
    changed = folder / f"part 4.{format_}"
    shutil.copy2(changed, kept)
    why = change(changed)
    for _ in range(2):
        with pytest.raises(InterruptedRunError, match=f"part%204.{format_}.* {why}"):
            site.run(pipeline, run_id="only")
        assert not public_count(site.tables / "copy")
    shutil.copy2(kept, changed)
    site.run(pipeline, run_id="only")
    expected = Counter((10 * number + n,) for number in range(6) for n in range(5))
    assert public(site.tables / "copy") == expected
    assert site.manifest().stages[StageName("copy")].input_rows == {"rows": 30}


@pytest.mark.parametrize(
    ("format_", "bad", "condition"),
    [
        ("json", b"{no\n", "MALFORMED_RECORD_IN_PARSING"),
        ("parquet", "texts", "PARQUET_COLUMN_DATA_TYPE_MISMATCH"),
        pytest.param("parquet", b"no parquet at all", "CANNOT_READ_FILE_FOOTER", marks=pytest.mark.nightly),
    ],
)
def test_an_unreadable_file_is_not_retried_and_another_file_can_replace_it(
    site: Site, format_: str, bad: bytes | str, condition: str
) -> None:
    """The test follows the remedy in a round that has staged a batch."""
    folder = site.home.parent / "in"
    folder.mkdir()
    pipeline, wrong = Pipeline("files", on_end="suspend"), folder / f"1.{format_}"

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option("mode", "FAILFAST").option("maxFilesPerTrigger", 1)
        return reader.format(format_).load(str(folder))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    FORMATS[format_](folder / f"0.{format_}", [0])
    if isinstance(bad, bytes):
        wrong.write_bytes(bad)
    else:
        pq.write_table(pa.table({"n": ["a text"]}), wrong)
    os.utime(folder / f"0.{format_}", (1_700_000_000,) * 2)  # Spark reads the oldest first
    for _ in range(2):
        with pytest.raises(PermanentFailureError, match=condition) as failed:
            site.run(pipeline, run_id="day 1")
        assert "into a file of another name, take this one out of the folder" in failed.value.remedy
        assert "--accept-data-loss" in failed.value.remedy
    FORMATS[format_](folder / f"2.{format_}", [1])
    wrong.unlink()
    site.run(pipeline, run_id="day 1", accept_data_loss=["rows"])
    assert public(site.tables / "copy") == Counter([(0,)])
    site.run(pipeline, run_id="day 2")
    assert public(site.tables / "copy") == Counter([(0,), (1,)])


def test_a_folder_that_is_tidied_between_two_tables_loses_no_row_of_the_second(site: Site) -> None:
    """A job tidies the folder, as cleanSource would. Each stage reads the folder by itself."""
    folder = site.home.parent / "in"
    folder.mkdir()
    for number in range(4):
        write_json(folder / f"{number}.json", [number])
    pipeline = Pipeline("tidied", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(folder))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "first")))
    def first(rows: DataFrame) -> DataFrame:
        return rows

    @pipeline.stage(sink=DeltaSink(str(site.tables / "second")))
    def second(rows: DataFrame, first: DataFrame) -> DataFrame:
        return rows.union(first)

    with observed_by(Meanwhile((folder / "2.json").unlink)), pytest.raises(InterruptedRunError, match=r"2\.json"):
        site.run(pipeline, run_id="only")
    assert not public_count(site.tables / "first")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("cleanSource", "archive", "sets cleanSource=archive"),
        ("ignoreCorruptFiles", "true", "sets ignoreCorruptFiles"),
        ("cleansource", "DELETE", "sets cleanSource=DELETE"),
        ("ignoreMissingFiles", "true", "sets ignoreMissingFiles"),
        ("maxFileAge", "30d", "sets maxFileAge=30d"),
        ("fileNameOnly", "true", "sets fileNameOnly"),
    ],
)
@pytest.mark.parametrize("bounded", [True, False])
def test_options_that_let_files_go_unread_are_refused_by_name(
    site: Site, option: str, value: str, message: str, bounded: bool
) -> None:
    folder = site.home.parent / "in"
    folder.mkdir()
    write_json(folder / "0.json", [0])
    pipeline = Pipeline("cleaned")

    @pipeline.source(bounded=bounded)
    def rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option(option, value).option("sourceArchiveDir", str(folder.parent / "done"))
        return reader.json(str(folder))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    with pytest.raises(InvalidPipelineError, match=message):
        site.run(pipeline)
    assert (folder / "0.json").exists()
    assert public_count(site.tables / "copy") is None


@pytest.mark.parametrize(("limit", "value"), [("maxFilesPerTrigger", "1"), ("maxBytesPerTrigger", "1000")])
@pytest.mark.parametrize("bounded", [True, False])
def test_reading_the_newest_files_first_is_refused_if_rows_of_older_files_would_be_late(
    site: Site, limit: str, value: str, bounded: bool
) -> None:
    pipeline, folder = Pipeline("newest"), site.home.parent / "in"
    folder.mkdir()

    @pipeline.source(bounded=bounded, event_time="at", watermark_delay="1 hour")
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("at timestamp").options(latestFirst=True, **{limit: value}).json(str(folder))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    with pytest.raises(InvalidPipelineError, match=f"latestFirst and {limit}") as refused:
        site.run(pipeline)
    assert ("hold_watermark=True" in refused.value.remedy) is bounded


def test_old_files_are_left_out_as_the_remedy_says(site: Site) -> None:
    folder, pipeline = site.home.parent / "in", Pipeline("recent", on_end="suspend")
    folder.mkdir()

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        frame = spark.readStream.schema(SCHEMA).json(str(folder))
        return frame.where("_metadata.file_modification_time >= '2020-01-01'").select("n")

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    for n, year in enumerate((2019, 2024, 2021)):
        write_json(folder / f"{n}.json", [n])
        os.utime(folder / f"{n}.json", (datetime(year, 6, 1, tzinfo=UTC).timestamp(),) * 2)
    site.run(pipeline)
    assert public(site.tables / "copy") == Counter([(1,), (2,)])


def test_a_delta_source_that_ignores_data_loss_is_refused(site: Site) -> None:
    write_deltalake(str(site.home.parent / "in"), pa.table({"n": [1]}))
    pipeline = Pipeline("lossy")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("failOnDataLoss", "false").load(str(site.home.parent / "in"))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    with pytest.raises(InvalidPipelineError, match="failOnDataLoss=false"):
        site.run(pipeline)


def test_a_table_that_has_gone_back_to_a_version_before_the_read_one_is_refused(site: Site) -> None:
    """An older copy is put back with the same id. The next commits reuse version numbers that were already read.

    The expected rows are those read before, and those of the current table, which is read from its beginning.
    """
    path, copy_of_it = site.home.parent / "in", site.home.parent / "backup"
    pipeline = Pipeline("back", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(path))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    for n in range(4):
        write_deltalake(str(path), pa.table({"n": [n]}), mode="append")
        if n == 1:
            shutil.copytree(path, copy_of_it)
    site.run(pipeline)
    shutil.rmtree(path)
    copy_of_it.rename(path)
    with pytest.raises(RejectedError, match="gone back: .* is at version 1, and version 3 was there"):
        site.run(pipeline)
    for n in range(4, 8):
        write_deltalake(str(path), pa.table({"n": [n]}), mode="append")
    for _ in range(2):
        with pytest.raises(RejectedError, match="an older copy of .* was put back, whose version 3 is another one"):
            site.run(pipeline)
    assert public(site.tables / "copy") == Counter((n,) for n in range(4))
    site.run(pipeline, new_sources=["rows"])
    now = DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist()
    assert public(site.tables / "copy") == Counter((n,) for n in [*range(4), *now])


def test_a_live_pipeline_notices_an_older_copy_of_its_source_at_a_start_and_while_it_runs(site: Site) -> None:
    path, backup = site.home.parent / "in", site.home.parent / "backup"
    pipeline = Pipeline("running", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.source(bounded=False)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(path))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)

    def add(n: int, to: Path = path) -> None:
        write_deltalake(str(to), pa.table({"n": [n]}), mode="append")

    def put_back(*numbers: int) -> None:
        prepared = site.home.parent / f"prepared {numbers}"
        shutil.copytree(backup, prepared)
        for n in numbers:
            add(n, prepared)
        path.rename(site.home.parent / f"away {numbers}")
        prepared.rename(path)

    def has_read(running: Running, version: int) -> bool:
        known = running.head().sources[InputName("rows")][0]
        return isinstance(known, KnownDelta) and known.seen is not None and known.seen.version == version

    add(0)
    add(1)
    shutil.copytree(path, backup)
    with Running(site.spark, pipeline, site.home) as running:
        running.checkpointed()
        add(2)
        running.until(lambda: has_read(running, 2))
    put_back(3, 4)
    with Running(site.spark, pipeline, site.home) as running:
        assert "whose version 2 is another one" in str(running.ends())
    with Running(site.spark, pipeline, site.home, options=StartOptions(new_sources=("rows",))) as running:
        running.until(lambda: public_count(site.tables / "copy") == 3 + 4)
        put_back(5, 6, 7)
        assert "whose version 3 is another one" in str(running.ends())


@pytest.mark.parametrize("kind", ["delta", "files", pytest.param("kafka", marks=pytest.mark.nightly)])
def test_the_manifest_has_the_number_of_rows_that_were_read_of_each_source(
    site: Site, request: pytest.FixtureRequest, kind: str
) -> None:
    """One stage reads two sources, one of them twice, and a static table."""
    root, pipeline = site.home.parent, Pipeline("counted", on_end="suspend")
    kafka: KafkaBroker | None = request.getfixturevalue("kafka") if kind == "kafka" else None
    if kafka is not None:
        kafka.create_topic("counted", 2)
    (root / "files").mkdir()

    def add(numbers: Sequence[int]) -> None:
        write_deltalake(str(root / "delta"), pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")
        write_json(root / f"files/{numbers[0]}.json", numbers)
        if kafka is not None:
            kafka.send("counted", [str(n).encode() for n in numbers], numbers[0] % 2)

    @pipeline.source(bounded=True)
    def left(spark: SparkSession) -> DataFrame:
        if kafka is not None:
            frame = spark.readStream.format("kafka").options(**kafka_options(kafka, "counted")).load()
            return frame.select(F.col("value").cast("string").cast("long").alias("n"))
        reader = spark.readStream.format("delta") if kind == "delta" else spark.readStream.schema(SCHEMA).format("json")
        return reader.load(str(root / kind))

    @pipeline.source(bounded=True)
    def right(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(root / "delta"))

    @pipeline.static
    def names(spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(root / "names"))

    write_deltalake(str(root / "names"), pa.table({"n": pa.array(range(100), pa.int64()), "name": ["x"] * 100}))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "both")))
    def both(left: DataFrame, right: DataFrame, names: DataFrame) -> DataFrame:
        return left.union(right).join(names, "n")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "alone")))
    def alone(left: DataFrame) -> DataFrame:
        return left

    add(range(5))
    add(range(10, 13))
    site.run(pipeline)
    stages: dict[str, Any] = {name: cut.input_rows for name, cut in site.manifest().stages.items()}
    assert stages == {"both": {"left": 8, "right": 8}, "alone": {"left": 8}}
    add(range(20, 24))
    site.run(pipeline)
    stages = {name: cut.input_rows for name, cut in site.manifest().stages.items()}
    assert stages == {"both": {"left": 4, "right": 4}, "alone": {"left": 4}}
    assert open_files(str(site.home)).names("manifests")
