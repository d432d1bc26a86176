"""Folders that are read without an end. A change that Spark would silently ignore ends the pipeline by name, or is read."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.losses import LostFiles
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.stages import source_watch
from tests.spark.conftest import Site
from tests.spark.failing import failing_from
from tests.spark.rows import public, public_count
from tests.support.running import Running

pytestmark = pytest.mark.spark


class Folder:
    """A folder of JSON files with two rows each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()

    def file(self, number: int) -> Path:
        return self.path / f"{number}.json"

    def write(self, number: int, rows: Sequence[int] | None = None) -> None:
        lines = [json.dumps({"n": n}) + "\n" for n in rows or (10 * number, 10 * number + 1)]
        unfinished = self.path.parent / "unfinished"
        unfinished.write_text("".join(lines))
        unfinished.rename(self.file(number))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


def copying(site: Site, folder: Folder) -> Pipeline:
    """Declares a copy of the rows. Rows from 40 on fail while a flag exists."""
    pipeline, flag = (
        Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"), restart=RestartStrategy.none()),
        site.home.parent / "fail",
    )

    @pipeline.source(bounded=False)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder.path))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(failing_from(40, flag)("n").alias("n"))

    return pipeline


def copied(site: Site) -> list[int]:
    return sorted(row[0] for row in public(site.tables / "copy").elements()) if public_count(site.tables / "copy") else []


def test_a_file_that_changes_after_it_was_read_ends_the_pipeline_by_name_until_it_is_put_right(
    site: Site, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark knows a file by its name, so it would never read rows that are added to the file or replace it."""
    monkeypatch.setattr(source_watch, "INTERVAL_S", 0.0)
    pipeline = copying(site, folder)
    folder.write(0)
    before = folder.file(0).stat()
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: copied(site) == [0, 1])
        folder.write(0, [0, 1, 2])
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "1 files that were changed since they were read, such as file:///" in error.failed
    with Running(site.spark, pipeline, site.home) as running:
        assert isinstance(running.ends(), RejectedError)
    folder.write(0)
    os.utime(folder.file(0), ns=(before.st_atime_ns, before.st_mtime_ns))
    folder.write(1, [2])
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: copied(site) == [0, 1, 2])
        folder.file(0).unlink()  # a file that was read may go
        folder.write(2)
        running.until(lambda: copied(site) == [0, 1, 2, 20, 21])


def test_a_new_file_with_the_name_of_a_file_that_was_accepted_as_lost_is_read(site: Site, folder: Folder) -> None:
    pipeline, flag = copying(site, folder), site.home.parent / "fail"
    flag.touch()
    for number in (3, 4):
        folder.write(number)
        os.utime(folder.file(number), (1_700_000_000 + number,) * 2)
    with Running(site.spark, pipeline, site.home) as running:
        assert "as told" in str(running.ends())
    flag.unlink()
    folder.write(4, [98, 99])
    with Running(site.spark, pipeline, site.home) as running:
        refused = running.ends()
    assert "--accept-data-loss rows" in str(refused.__cause__)
    with Running(site.spark, pipeline, site.home, options=StartOptions(accept_data_loss=("rows",))) as running:
        running.until(lambda: copied(site) == [30, 31, 98, 99])
        (lost,) = running.head().losses
    assert isinstance(lost, LostFiles)
    assert [file.path.rpartition("/")[2] for file in lost.files] == ["4.json"]


def test_a_csv_file_with_its_columns_at_other_positions_ends_the_pipeline_by_name(site: Site, tmp_path: Path) -> None:
    (path := tmp_path / "csv").mkdir()
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.source(bounded=False)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long, m long").option("header", True).csv(str(path))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows.select("n"))

    def add(name: str, text: str) -> None:
        (tmp_path / "unfinished").write_text(text)
        (tmp_path / "unfinished").rename(path / name)

    add("0.csv", "n,m\n0,9\n")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: copied(site) == [0])
        add("1.csv", "m,n\n9,1\n")
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "1.csv has 'm' as column 1, where the schema has 'n'" in error.failed
    (path / "1.csv").unlink()
    add("2.csv", "n,m\n1,9\n")
    with Running(site.spark, pipeline, site.home, options=StartOptions(accept_data_loss=("rows",))) as running:
        running.until(lambda: copied(site) == [0, 1])
