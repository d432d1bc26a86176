"""Violations that are known without Spark: from the statistics of staged files, and from the error of a batch."""

import json
from types import MappingProxyType
from typing import Any

import pytest

from spark_jobs.api.expectations import VIOLATED, Expectations, OnViolation
from spark_jobs.api.stage import OutputMode, RateLimits, Stage
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.stages.judging import failed_by, has_violations

RAISED = "[USER_RAISED_EXCEPTION] rows violate expectations of their stage: positive, known. SQLSTATE: P0001"


def stage(expectations: Expectations | None) -> Stage:
    return Stage(
        name=StageName("orders"),
        function=lambda events: events,
        inputs={},
        unbounded=False,
        sink=None,
        event_time=None,
        delay_ms=None,
        output_mode=OutputMode.APPEND,
        limits=RateLimits(),
        conf={},
        expectations=expectations,
    )


FAILING = stage(
    Expectations(MappingProxyType({"positive": "amount > 0", "known": "customer IS NOT NULL"}), OnViolation.FAIL, None)
)


def added(rows: int, **nulls: int) -> dict[str, Any]:
    return {"path": "a.parquet", "stats": json.dumps({"numRecords": rows, "nullCount": nulls})}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adds", "found"),
    [
        ([], False),
        ([added(3, **{VIOLATED: 3}), added(2, **{VIOLATED: 2})], False),
        ([added(3, **{VIOLATED: 3}), added(2, **{VIOLATED: 1})], True),
        ([added(3, amount=0)], True),
        ([{"path": "a.parquet", "stats": json.dumps({"numRecords": 3})}], True),
    ],
)
def test_files_are_read_again_unless_their_statistics_show_no_violation(adds: list[dict[str, Any]], found: bool) -> None:
    assert has_violations(adds) is found


def test_the_error_of_a_failed_batch_names_the_violated_expectation() -> None:
    error = failed_by(RuntimeError(RAISED), FAILING, BatchId(4))
    assert isinstance(error, RejectedError)
    assert "Batch 4 of stage 'orders'" in error.failed
    assert "positive: amount > 0; known: customer IS NOT NULL" in error.failed
    assert error.evidence["expectations"] == ["positive", "known"]


def test_another_error_is_no_violation() -> None:
    plan = "raise_error(concat(rows violate expectations of their stage: , array_join(violated_expectations, , ), .))"
    assert failed_by(RuntimeError("no such airport"), FAILING, BatchId(4)) is None
    assert failed_by(RuntimeError(plan), FAILING, BatchId(4)) is None
    assert failed_by(RuntimeError(RAISED), stage(None), BatchId(4)) is None
