"""Checks of declared expectations that need no columns. All errors are reported at once."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.expectations import Expectations, OnViolation
from spark_jobs.api.stage import DeclaredStage
from spark_jobs.protocol.errors import InvalidPipelineError

POSITIVE = {"positive": "amount > 0"}


def copied(events: Any) -> Any: ...


def declared(**options: Any) -> Expectations | None:
    pipeline = Pipeline("shop")
    pipeline.stage(name="orders", **options)(copied)
    stage = pipeline._declarations["orders"]
    assert isinstance(stage, DeclaredStage)
    return stage.expectations


def test_a_stage_has_no_expectations_by_default() -> None:
    assert declared() is None


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, OnViolation.FAIL),
        ({"on_violation": "drop"}, OnViolation.DROP),
        ({"violations": DeltaSink("/rejected")}, OnViolation.DIVERT),
        ({"violations": DeltaSink("/rejected"), "on_violation": "divert"}, OnViolation.DIVERT),
    ],
)
def test_a_violation_fails_the_batch_unless_the_stage_has_a_table_of_violations(
    options: dict[str, Any], chosen: OnViolation
) -> None:
    found = declared(expect=POSITIVE, **options)
    assert found is not None
    assert found.on_violation is chosen
    assert found.sorts is (chosen is not OnViolation.FAIL)


def test_the_table_of_violations_is_named_after_the_stage() -> None:
    found = declared(expect=POSITIVE, violations=DeltaSink("/rejected"))
    assert found is not None
    assert found.violations is not None
    assert found.violations.name == "orders_violations"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_violation": "drop"}, "it has on_violation= without expect="),
        ({"violations": DeltaSink("/rejected")}, "it has violations= without expect="),
        ({"expect": {}}, r"expect=\{\} is not a mapping of names to conditions"),
        ({"expect": "amount > 0"}, "expect='amount > 0' is not a mapping"),
        ({"expect": {"positive": ""}}, "its expectation 'positive' is ''"),
        ({"expect": {"positive": 3}}, "its expectation 'positive' is 3"),
        ({"expect": {"it's positive": "amount > 0"}}, "cannot be a name"),
        ({"expect": POSITIVE, "on_violation": "ignore"}, "on_violation='ignore' is unknown"),
        ({"expect": POSITIVE, "on_violation": "divert"}, 'on_violation="divert" needs a table'),
        ({"expect": POSITIVE, "on_violation": "drop", "violations": DeltaSink("/r")}, "violations= is for on_violation=.divert"),
        ({"expect": POSITIVE, "violations": "/rejected"}, "violations='/rejected' is not a sink"),
        ({"expect": POSITIVE, "violations": DeltaSink("/r", mode="upsert", keys=["id"])}, 'has mode="upsert"'),
        (
            {"expect": POSITIVE, "on_violation": "drop", "sink": DeltaSink("/t", mode="complete")},
            'cannot be used with a sink with mode="complete"',
        ),
        (
            {"expect": POSITIVE, "on_violation": "drop", "sink": DeltaSink("/t", mode="upsert", keys=["id"])},
            'needs sequence_by in a sink with mode="upsert"',
        ),
        (
            {"expect": POSITIVE, "on_violation": "drop", "sink": DeltaSink("/t", mode="insert", keys=["id"])},
            'needs sequence_by in a sink with mode="insert"',
        ),
    ],
)
def test_an_invalid_expectation_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        declared(**options)


@pytest.mark.parametrize("mode", ["complete", "upsert", "insert"])
def test_a_batch_may_fail_into_any_sink(mode: Any) -> None:
    sink = DeltaSink("/t", mode=mode, keys=() if mode == "complete" else ["id"])
    found = declared(expect=POSITIVE, sink=sink)
    assert found is not None
    assert found.on_violation is OnViolation.FAIL


def test_one_error_names_all_mistakes_of_a_stages_expectations() -> None:
    with pytest.raises(InvalidPipelineError, match="3 mistakes were found") as caught:
        declared(expect={"1st": "amount > 0", "known": " "}, on_violation="ignore")
    assert len(caught.value.evidence["mistakes"]) == 3


def test_a_condition_that_is_null_or_ends_in_a_comment_is_one_condition() -> None:
    found = declared(expect={"positive": "amount > 0 -- net", "known": "customer IS NOT NULL"})
    assert found is not None
    assert found.violated == (
        "CASE WHEN (amount > 0 -- net\n) AND (customer IS NOT NULL\n) THEN NULL ELSE array_compact(array("
        "CASE WHEN (amount > 0 -- net\n) THEN NULL ELSE 'positive' END, "
        "CASE WHEN (customer IS NOT NULL\n) THEN NULL ELSE 'known' END)) END"
    )
