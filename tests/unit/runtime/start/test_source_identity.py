"""The sources that a start reads from the beginning."""

from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownOther
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.runtime.start.source_identity import FoundSource, check_names, settle

ROWS, SHOPS = InputName("rows"), InputName("shops")


def found(source: str) -> dict[InputName, FoundSource]:
    frame: Any = None
    leaf = Leaf(0, "StreamingRelationV2", source, {}, StructType())
    return {ROWS: FoundSource(frame, (leaf,), (KnownOther(source=source),), begins_by_itself=True)}


def test_a_source_that_is_the_same_goes_on() -> None:
    assert not settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, ()).renewed


def test_a_source_that_is_the_same_is_read_from_its_beginning_on_request() -> None:
    """A replaced table has the same id as before."""
    assert settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [ROWS], anew=[ROWS]).renewed == {ROWS}


def test_a_source_that_was_not_there_before_begins_by_itself() -> None:
    assert not settle(found("rate"), {}, [ROWS], anew=[ROWS]).renewed


def test_another_source_is_refused_unless_it_is_taken_as_a_new_one() -> None:
    before = {ROWS: (KnownOther(source="socket"),)}
    with pytest.raises(RejectedError, match="reads 'rate', but before it read 'socket'"):
        settle(found("rate"), before, ())
    assert settle(found("rate"), before, [ROWS], anew=[ROWS]).renewed == {ROWS}


def test_a_static_input_that_is_taken_as_a_new_one_ends_the_round_and_no_source_is_read_again() -> None:
    settled = settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [SHOPS], anew=[SHOPS])
    assert not settled.renewed
    assert settled.taken_anew == {SHOPS}
    assert settled.replaces_round
    assert not settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [SHOPS]).replaces_round


def test_only_an_option_for_static_inputs_takes_their_names() -> None:
    pipeline = Pipeline("mixed")
    pipeline.source(bounded=True, name="rows")(lambda spark: None)
    pipeline.static(name="shops")(lambda spark: None)
    pipeline.stage(name="joined", sink=DeltaSink("/tables/joined"))(lambda rows, shops: rows)
    graph = pipeline.graph()
    check_names(graph, [ROWS, SHOPS], statics=True)
    with pytest.raises(InvalidParameterError, match="has no source 'shops'"):
        check_names(graph, [SHOPS])
    with pytest.raises(InvalidParameterError, match="has no source or static input 'shop'.*shops"):
        check_names(graph, [InputName("shop")], statics=True)
