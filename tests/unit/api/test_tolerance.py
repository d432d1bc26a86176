"""The failures that a stage tolerates, and the declarations that are refused."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline, Tolerate
from spark_jobs.api.graph import Graph
from spark_jobs.api.tolerance import Tolerance
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import StageName


def graph(tolerate: Any = None, *, reads: str = "copied", **sink: Any) -> Graph:
    """A pipeline with a stage that copies its source and a tolerant stage that reads the copy or the source."""
    pipeline = Pipeline("shop")
    pipeline.source(bounded=True, name="events")(lambda spark: spark)
    pipeline.stage(name="copied", sink=DeltaSink("/copied"))(lambda events: events)
    pipeline.stage(name="scored", sink=DeltaSink("/scored", **sink), inputs={"rows": reads}, tolerate=tolerate)(lambda rows: rows)
    return pipeline.graph()


@pytest.mark.parametrize(
    ("rows", "interval_ms"), [("1000 per hour", 3_600_000), (" 1000  Per 30 minutes ", 1_800_000), ("1000 per day", 86_400_000)]
)
def test_a_budget_is_a_number_of_rows_in_a_time(rows: str, interval_ms: int) -> None:
    tolerance = graph(Tolerate(rows=rows)).stages[StageName("scored")].tolerance
    assert tolerance == Tolerance(after=3, rows=1000, interval_ms=interval_ms)


def test_a_stage_tolerates_nothing_by_default_and_its_tolerance_may_change() -> None:
    tolerant, plain = graph(Tolerate(rows="1 per hour")), graph()
    assert all(stage.tolerance is None for stage in plain.stages.values())
    assert tolerant.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
    ("tolerate", "problem"),
    [
        ("1000 per hour", "is no tolerance"),
        (Tolerate(rows="many"), "tolerate rows='many' is no number of rows in a time"),
        (Tolerate(rows="0 per hour"), "is no number of rows in a time"),
        (Tolerate(rows="10"), "is no number of rows in a time"),
        (Tolerate(rows=10), "is no number of rows in a time"),  # type: ignore[arg-type]
        (Tolerate(rows="10 per month"), "no fixed length"),
        (Tolerate(rows="10 per hour", after=0), "tolerate after=0 is not a whole number above 0"),
    ],
)
def test_an_invalid_tolerance_is_refused(tolerate: Any, problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        graph(tolerate)


def test_a_tolerance_is_refused_for_a_complete_result() -> None:
    with pytest.raises(InvalidPipelineError, match='sink with mode="complete"'):
        graph(Tolerate(rows="1 per hour"), mode="complete")


def test_a_stage_that_reads_a_source_may_have_a_tolerance_too() -> None:
    assert graph(Tolerate(rows="1 per hour"), reads="events").stages[StageName("scored")].tolerance is not None
