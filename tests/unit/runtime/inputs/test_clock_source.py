"""The clock of a stage that reads no stream: one batch in each round."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import ClockPin
from spark_jobs.runtime.inputs.clock_source import ClockBound, ClockSource
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark.plan import Leaf

NAME, NOTHING = InputName("names_clock"), object()


def offset(number: int, timestamp_ms: int) -> str:
    return json.dumps({"offset": number, "timestamp": timestamp_ms})


def leaf(**options: str) -> Leaf:
    return Leaf(0, "StreamingRelationV2", "rate-micro-batch", options, StructType())


@given(st.integers(0, 50), st.integers(0, 10**13), st.integers(1, 10**13))
def test_a_batch_is_cut_back_to_one_row_at_the_moment_of_the_round(number: int, planned_ms: int, later_ms: int) -> None:
    before = offset(number, planned_ms)
    bound = ClockBound(planned_ms + later_ms)
    assert not bound.reached(before)
    line = offset(number + 1, planned_ms + 1000)  # as Spark plans it
    if bound.exceeded(before, line):
        line = bound.cut_back(before, line)
    assert bound.reached(line)
    assert not bound.exceeded(before, line)
    assert json.loads(line) == {"offset": number + 1, "timestamp": planned_ms + later_ms}


def test_a_stage_that_has_not_run_has_one_batch_to_run() -> None:
    bound = ClockBound(7)
    assert not bound.reached(None)
    assert bound.exceeded(None, offset(1, 1000))
    assert (bound.rows_expected(None), bound.rows_expected(offset(1, 7))) == (1, 0)


def test_a_clock_gives_another_row_after_its_end() -> None:
    bound, line = ClockBound(7), offset(1, 7)
    again = bound.once_more(line)
    assert json.loads(again) == {"offset": 2, "timestamp": 7}
    assert bound.reached(again)
    assert not bound.exceeded(line, again)


def test_only_a_stream_with_the_option_of_a_clock_is_a_clock() -> None:
    assert isinstance(kind_of(leaf(**{"spark_jobs.clock": "true"})), ClockSource)
    with pytest.raises(InvalidPipelineError, match="for which no end can be recorded"):
        kind_of(leaf()).check(NAME, leaf(), bounded=True, moving=False)


@pytest.mark.parametrize(("now_ms", "allowed"), [(1001, True), (1000, False), (1, False)])
def test_a_clock_that_was_set_back_is_refused(now_ms: int, allowed: bool) -> None:
    nothing: Any = NOTHING
    pins = ClockPin(moment_ms=1000), ClockPin(moment_ms=now_ms)
    if allowed:
        ClockSource().check_new(NAME, nothing, nothing, *pins)
        return
    with pytest.raises(RejectedError, match=f"The clock of this host is {1000 - now_ms} ms behind"):
        ClockSource().check_new(NAME, nothing, nothing, *pins)
