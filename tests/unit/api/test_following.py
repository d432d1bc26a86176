"""A source that continues where another source of the same table ends, as far as this can be checked without Spark."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName

HISTORY, TAIL = InputName("history"), InputName("tail")


def seam(*, history: dict[str, Any] | None = None, tail: dict[str, Any] | None = None) -> Pipeline:
    """A pipeline that reads a table's existing rows and then its new rows."""
    pipeline = Pipeline("seam")
    first: dict[str, Any] = {"bounded": True, "name": "history"} | (history or {})
    second: dict[str, Any] = {"bounded": False, "after": "history", "name": "tail"} | (tail or {})
    pipeline.source(**first)(lambda spark: spark)
    pipeline.source(**second)(lambda spark: spark)

    @pipeline.stage(sink=DeltaSink("/tables/all"))
    def everything(history: Any, tail: Any) -> Any:
        return history.union(tail)

    return pipeline


def test_a_source_refers_to_the_source_that_it_follows() -> None:
    sources = seam().graph().sources
    assert sources[TAIL].follows is sources[HISTORY]
    assert sources[HISTORY].follows is None


def test_the_fingerprint_depends_on_the_source_that_a_source_follows() -> None:
    assert seam(tail={"after": None}).graph().fingerprint() != seam().graph().fingerprint()


def test_the_description_of_a_source_that_follows_no_other_has_no_further_field() -> None:
    described = seam(tail={"after": None}).graph().describe()["sources"]
    assert {key for source in described.values() for key in source} == {"bounded", "event_time", "delay_ms", "held"}


@pytest.mark.parametrize(
    ("history", "tail", "problem"),
    [
        ({}, {"bounded": True}, "is for an unbounded source"),
        ({}, {"after": 7}, "after=7 is for an unbounded source"),
        ({}, {"after": "histories"}, "begins after 'histories', which is not declared. Did you mean 'history'"),
        ({"bounded": False}, {}, "begins after 'history', which has no end"),
        ({}, {"after": "tail"}, "begins after 'tail', which has no end"),
        ({}, {"after": "everything"}, "begins after 'everything', which is not declared"),
    ],
)
def test_a_source_begins_after_a_bounded_one(history: dict[str, Any], tail: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        seam(history=history, tail=tail).graph()


def test_a_tail_that_a_test_reads_from_its_own_rows_follows_nothing() -> None:
    rewired = seam().rewired({"history": lambda spark: spark, "tail": lambda spark: spark}, "/tables")
    assert rewired.graph().sources[TAIL].follows is None
