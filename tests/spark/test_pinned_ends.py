"""The end of an input is pinned at the start of its round. Rows that arrive during an interruption do not join the round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import DeltaPin
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, assert_same, counted, public

pytestmark = pytest.mark.spark

ROWS = 2_400
Source = Callable[[SparkSession, Path], DataFrame]


def _table(number: int) -> pd.DataFrame:
    """Returns the rows of part ``number``. Ids show the part."""
    table = inputs.payments(ROWS // 24, days=2, seed=number)
    table["payment"] += number * 1_000
    return table


def _write_delta(path: Path, parts: Iterator[int]) -> None:
    for number in parts:
        inputs.append(path, _table(number))


def _write_files(path: Path, parts: Iterator[int]) -> None:
    for number in parts:
        path.mkdir(exist_ok=True)
        inputs.write_parquet(path / f"part {number:02d}", _table(number), 1)


def _delta(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 2).load(str(path))


def _delta_at_once(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.format("delta").load(str(path))


def _delta_from_the_first_version(spark: SparkSession, path: Path) -> DataFrame:
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", 2).option("startingVersion", 0)
    return reader.load(str(path))


def _files(spark: SparkSession, path: Path) -> DataFrame:
    schema = "payment long, paid_at timestamp, payer string, amount int"
    return spark.readStream.schema(schema).option("recursiveFileLookup", True).option("maxFilesPerTrigger", 1).parquet(str(path))


def _files_at_once(spark: SparkSession, path: Path) -> DataFrame:
    schema = "payment long, paid_at timestamp, payer string, amount int"
    return spark.readStream.schema(schema).option("recursiveFileLookup", True).parquet(str(path))


def _files_latest_first(spark: SparkSession, path: Path) -> DataFrame:
    schema = "payment long, paid_at timestamp, payer string, amount int"
    reader = spark.readStream.schema(schema).option("recursiveFileLookup", True).option("maxFilesPerTrigger", 1)
    return reader.option("latestFirst", True).parquet(str(path))


@dataclass(frozen=True)
class Case:
    source: Source
    write: Callable[[Path, Iterator[int]], None]
    fails_in_part: int
    """The part whose batch fails in the first attempt."""


CASES = {
    "delta, in the first batch": Case(_delta, _write_delta, 0),
    "delta, all at once": Case(_delta_at_once, _write_delta, 5),
    "delta, midway through the snapshot": Case(_delta, _write_delta, 7),
    "delta, midway through the versions": Case(_delta_from_the_first_version, _write_delta, 7),
    "delta, in the last batch": Case(_delta_from_the_first_version, _write_delta, 11),
    "files, in the first batch": Case(_files_at_once, _write_files, 0),
    "files, one at a time, after the log was compacted": Case(_files, _write_files, 11),
    "files, one at a time, before the log is compacted": Case(_files, _write_files, 8),
    "files, latest first": Case(_files_latest_first, _write_files, 9),
}


AT_NIGHT = {
    "delta, in the first batch",
    "delta, in the last batch",
    "delta, all at once",
    "delta, midway through the versions",
    "files, in the first batch",
    "files, one at a time, before the log is compacted",
    "files, latest first",
}
"""More cases with the same source, which fail at other points of the round."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly if name in AT_NIGHT else ()) for name in CASES])
def test_rows_that_arrive_while_a_round_is_interrupted_join_the_next_one(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case, site, flag = CASES[name], Site(spark, tmp_path), tmp_path / "fail"
    pipeline = Pipeline("pinned", on_end="suspend")

    @pipeline.source(bounded=True)
    def payments(spark: SparkSession) -> DataFrame:
        return case.source(spark, tmp_path / "in")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(payments: DataFrame) -> DataFrame:
        return _failing_in(case.fails_in_part, flag, payments)

    case.write(tmp_path / "in", iter(range(12)))
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="first")
    flag.unlink()
    case.write(tmp_path / "in", iter(range(12, 15)))
    site.run(pipeline, run_id="first")
    assert_same(public(site.tables / "copy"), _rows(range(12)))
    site.run(pipeline, run_id="second")
    assert_same(public(site.tables / "copy"), _rows(range(15)))


def test_the_end_of_a_source_is_pinned_before_earlier_stages_have_run(spark: SparkSession, tmp_path: Path) -> None:
    """The second source was pinned and not yet read when the first attempt failed."""
    site, flag = Site(spark, tmp_path), tmp_path / "fail"
    pipeline = Pipeline("pinned")

    @pipeline.source(bounded=True)
    def first(spark: SparkSession) -> DataFrame:
        return _delta_at_once(spark, tmp_path / "first")

    @pipeline.source(bounded=True, event_time="paid_at")
    def second(spark: SparkSession) -> DataFrame:
        return _delta(spark, tmp_path / "second")

    @pipeline.source(bounded=True)
    def third(spark: SparkSession) -> DataFrame:
        return _files(spark, tmp_path / "third")

    @pipeline.static
    def fourth(spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(tmp_path / "fourth"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "a")))
    def a(first: DataFrame, third: DataFrame, fourth: DataFrame) -> DataFrame:
        both = first.union(third).join(
            fourth.select(F.col("payment").alias("joined")), F.col("payment") == F.col("joined"), "left"
        )
        return _failing_in(1, flag, both)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "b")))
    def b(second: DataFrame) -> DataFrame:
        return second.dropDuplicates(["payment", "paid_at"])

    for name in ("first", "second", "fourth"):
        _write_delta(tmp_path / name, iter(range(3)))
    _write_files(tmp_path / "third", iter(range(3, 5)))
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="only")
    flag.unlink()
    for name in ("first", "second", "fourth"):
        _write_delta(tmp_path / name, iter(range(3, 6)))
    _write_files(tmp_path / "third", iter(range(5, 7)))
    site.run(pipeline, run_id="only")
    assert_same(public(site.tables / "a", _table(0).columns), _rows(range(5)))
    joined = [row[-1] for row in public(site.tables / "a").elements() if row[-1] is not None]
    assert sorted(joined) == sorted(row[0] for row in _rows(range(3)).elements())
    assert_same(public(site.tables / "b"), _rows(range(3)))
    (pin,) = site.manifest().inputs[InputName("second")]
    assert isinstance(pin, DeltaPin)
    assert pin.version == 2


def _failing_in(part: int, flag: Path, frame: DataFrame) -> DataFrame:
    """Returns ``frame`` with a failure in one part while ``flag`` exists."""

    def fail(payment: int) -> int:
        if payment // 1_000 == part and flag.exists():
            raise ValueError("failed as told")
        return payment

    return frame.withColumn("payment", F.udf(fail, "long", useArrow=False)("payment"))


def _rows(parts: range) -> Rows:
    return counted(pa.Table.from_pandas(pd.concat([_table(number) for number in parts]), preserve_index=False))
