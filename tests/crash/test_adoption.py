"""A run adopts an old query's offsets, loses power after each step of the adoption, and is run again."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.steps import Step
from tests.support import small_pipeline
from tests.support.crashes import Point, run_into
from tests.support.opened_tables import opened
from tests.support.run_site import RunSite, small_session

pytestmark = pytest.mark.spark

BATCH = [Step.PLAN_BATCH, Step.STAGE_VERSION, Step.COMMIT_BATCH]


def copying() -> Pipeline:
    pipeline = Pipeline("copying", params=small_pipeline.Params)
    pipeline.source(bounded=True, name="events")(small_pipeline.events)
    pipeline.stage(sink=DeltaSink("{warehouse}/copy"), name="copy")(lambda events: events)
    return pipeline


def read_a_part(events: Path, checkpoint: Path, table: Path) -> None:
    """Runs an old query that stops after its first batch."""
    stream = small_session().readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(events)).writeStream
    query = (
        stream.format("delta").option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 hour").start(str(table))
    )
    while query.status["message"] != "Waiting for next trigger":
        query.awaitTermination(1)
    query.stop()


def rows(table: Path | str) -> list[tuple[object, ...]]:
    found = opened(str(table)).to_pyarrow_table()
    return sorted(zip(found["at"].to_pylist(), found["origin"].to_pylist(), strict=True))


def completes_a_step(point: Point) -> bool:
    return not point.before and point.step in BATCH


def test_a_run_that_dies_after_each_step_of_an_adoption_reads_each_row_once(any_site: RunSite, tmp_path: Path) -> None:
    old = tmp_path / "old"
    read_a_part(any_site.events, old, tmp_path / "old table")
    adopting = replace(any_site, pipeline=copying(), adopt_offsets={"events": str(old)})
    died_after = []
    for _ in range(2 * len(BATCH)):
        point = run_into(adopting, completes_a_step)
        assert point is not None
        died_after.append(point.step)
        rmtree(old, ignore_errors=True)  # from the first attempt on, the home knows what was adopted
    assert died_after == [*BATCH, *BATCH]
    adopting.run()
    old_rows, new_rows = rows(tmp_path / "old table"), rows(adopting.table("copy"))
    assert old_rows
    assert new_rows
    assert sorted(old_rows + new_rows) == rows(any_site.events)
