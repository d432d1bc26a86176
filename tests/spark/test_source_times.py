"""Event times without a time zone, and Delta tables that a source reads by their path."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.testing import run_pipeline
from tests.spark.conftest import Site
from tests.spark.rows import public_count

pytestmark = pytest.mark.spark

WINTER, SUMMER = datetime.fromisoformat("2026-01-15T12:00:00.000250"), datetime.fromisoformat("2026-07-15T12:00:00")
WINTER_UTC, SUMMER_UTC = datetime(2026, 1, 15, 11, 0, 0, 250, tzinfo=UTC), datetime(2026, 7, 15, 10, tzinfo=UTC)


def naive(path: Path, zone: str | None = None) -> Path:
    write_deltalake(path, pa.table({"id": [1, 2, 3], "at": pa.array([WINTER, SUMMER, None], pa.timestamp("us", zone))}))
    return path


def copying(site: Site, path: Path, by_path: bool = False) -> Pipeline:
    pipeline = Pipeline("zoned")

    @pipeline.source(bounded=True, event_time="at", event_time_zone="Europe/Berlin")
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.table(f"delta.`{path}`") if by_path else spark.readStream.format("delta").load(str(path))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(rows: DataFrame) -> DataFrame:
        return rows

    @pipeline.stage(sink=DeltaSink(str(site.tables / "hours")))
    def hours(copied: DataFrame) -> DataFrame:
        return copied.groupBy(F.window("at", "1 hour")).count().select("count")

    return pipeline


@pytest.mark.parametrize("session_zone", ["UTC", "America/New_York"])
def test_a_naive_event_time_means_the_same_moment_in_every_session(site: Site, tmp_path: Path, session_zone: str) -> None:
    site.spark = site.spark.newSession()
    site.spark.conf.set("spark.sql.session.timeZone", session_zone)
    site.run(copying(site, naive(tmp_path / "events")))
    found = DeltaTable(site.tables / "copied").to_pyarrow_table().sort_by("id").column("at").to_pylist()
    assert found == [WINTER_UTC, SUMMER_UTC, None]
    assert public_count(site.tables / "hours") == 2


def test_a_time_zone_for_a_column_that_has_one_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match="'at' is a TIMESTAMP, not a TIMESTAMP_NTZ"):
        site.run(copying(site, naive(tmp_path / "events", "UTC")))
    assert not site.tables.exists()


def test_run_pipeline_accepts_rows_with_naive_event_times(site: Site) -> None:
    rows = [{"id": 1, "at": WINTER}, {"id": 2, "at": SUMMER}]
    tables = run_pipeline(copying(site, Path("/nowhere")), {"rows": rows}, spark=site.spark)
    assert len(tables["hours"]) == 2
    assert len(tables["copied"]) == 2


@pytest.mark.parametrize("name", ["events", "events with a space"])
def test_a_table_that_is_read_by_a_path_in_backticks_is_a_stream(site: Site, tmp_path: Path, name: str) -> None:
    site.run(copying(site, naive(tmp_path / name), by_path=True))
    assert public_count(site.tables / "copied") == 3
