"""Stages that set watermarks on their inputs with ``withWatermark``. The runtime moves these as it moves declared ones."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.start_requests import StartOptions
from tests.spark.conftest import Site
from tests.spark.rows import public_count
from tests.support.running import Running

pytestmark = pytest.mark.spark

COLUMNS = "id INT, at TIMESTAMP"


def _deliver(folder: Path, first: int, last: int) -> None:
    """Writes files with an event for every ten minutes of a day, the latest first."""
    for number in range(last - 1, first - 1, -1):
        file = folder / f"{number:03}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{{"id": {number % 5}, "at": "2026-03-02T{number // 6:02}:{number % 6}0:00"}}\n')


def _hours(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "1 hour").alias("w")).agg(F.count("*").alias("n")).select("w.start", "w.end", "n")


def _pipeline(site: Site, events: Path, *, declared: bool = False) -> Pipeline:
    pipeline = Pipeline("own_watermarks", on_end="suspend")
    given = {"event_time": "at", "watermark_delay": "5 hours", "hold_watermark": True} if declared else {}

    @pipeline.source(bounded=True, **given)  # type: ignore[arg-type]
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 4).json(str(events))

    @pipeline.stage
    def some(rows: DataFrame) -> DataFrame:
        return rows.where("id < 4").select("at", "id")

    @pipeline.stage(sink=DeltaSink(site.table("source_quick")))
    def source_quick(rows: DataFrame) -> DataFrame:
        return _hours(rows.where("id >= 0").withWatermark("at", "10 minutes"))

    @pipeline.stage(sink=DeltaSink(site.table("source_patient")))
    def source_patient(rows: DataFrame) -> DataFrame:
        return _hours(rows.withWatermark("at", "3 hours"))

    @pipeline.stage(sink=DeltaSink(site.table("stage_quick")))
    def stage_quick(some: DataFrame) -> DataFrame:
        return _hours(some.alias("s").withWatermark("at", "10 minutes").where("s.id >= 0"))

    @pipeline.stage(sink=DeltaSink(site.table("stage_patient")))
    def stage_patient(some: DataFrame) -> DataFrame:
        return _hours(some.withWatermark("at", "3 hours"))

    return pipeline


def _table(site: Site, name: str) -> list[Row]:
    return sorted(site.spark.read.format("delta").load(site.table(name)).collect())


def _batch(site: Site, events: Path, condition: str = "true") -> list[Row]:
    return sorted(_hours(site.spark.read.schema(COLUMNS).json(str(events)).where(condition)).collect())


# Where a source declares no watermark, that of the stage is the only one.
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(False, id="no declared watermark", marks=pytest.mark.nightly),
        pytest.param(True, id="another declared watermark"),
    ],
)
def test_each_stage_closes_windows_by_the_delay_that_it_sets_and_a_drain_closes_all(
    site: Site, tmp_path: Path, declared: bool
) -> None:
    events = tmp_path / "events"
    _deliver(events, 0, 48)  # until 07:50, in batches that go back in time
    site.run(_pipeline(site, events, declared=declared))
    conditions = {"source": "true", "stage": "id < 4"}
    ends = {"quick": "07:00:00", "patient": "04:00:00"}
    for reads, condition in conditions.items():
        for name, end in ends.items():
            closed = [row for row in _batch(site, events, condition) if str(row.end.time()) <= end]
            assert _table(site, f"{reads}_{name}") == closed
            assert len(closed) == int(end[:2])
    site.run(_pipeline(site, events, declared=declared), on_end="drain")
    for reads, condition in conditions.items():
        for name in ends:
            assert _table(site, f"{reads}_{name}") == _batch(site, events, condition)


def test_a_live_stage_closes_windows_by_the_delay_that_it_sets(site: Site, tmp_path: Path) -> None:
    events = tmp_path / "events"
    _deliver(events, 0, 48)
    pipeline = Pipeline("own_watermarks")

    @pipeline.source(bounded=False)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(COLUMNS).json(str(events))

    for name, delay in {"quick": "10 minutes", "patient": "3 hours"}.items():

        @pipeline.stage(name=name, inputs={"given": "rows"}, sink=DeltaSink(site.table(name)))
        def windows(given: DataFrame, delay: str = delay) -> DataFrame:
            return _hours(given.withWatermark("at", delay))

    options = StartOptions(checkpoint=CheckpointOverrides(interval_ms=1_000))
    with Running(site.spark, pipeline, site.home, options=options) as running:
        running.until(lambda: (public_count(site.tables / "quick"), public_count(site.tables / "patient")) == (7, 4))
    assert _table(site, "quick") == _batch(site, events)[:7]
    assert _table(site, "patient") == _batch(site, events)[:4]


def test_files_that_come_latest_first_are_refused_if_the_watermark_of_a_stage_moves(site: Site, tmp_path: Path) -> None:
    events = tmp_path / "events"
    _deliver(events, 0, 1)
    pipeline = Pipeline("own_watermarks")

    @pipeline.source(bounded=False)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(COLUMNS).option("latestFirst", "true").option("maxFilesPerTrigger", 1).json(str(events))

    @pipeline.stage(sink=DeltaSink(site.table("windows")))
    def windows(rows: DataFrame) -> DataFrame:
        return _hours(rows.withWatermark("at", "1 hour"))

    with pytest.raises(InvalidPipelineError, match="latestFirst"):
        site.run(pipeline)
    assert not site.home.exists(), "a refused first start leaves nothing behind"
