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


def test_a_source_with_the_same_identity_continues() -> None:
    assert not settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, ()).renewed


def test_a_source_with_the_same_identity_is_read_from_its_beginning_on_request() -> None:
    """A replaced table has the same id as before."""
    assert settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [ROWS], to_renew=[ROWS]).renewed == {ROWS}


def test_an_added_source_begins_without_a_request() -> None:
    assert not settle(found("rate"), {}, [ROWS], to_renew=[ROWS]).renewed


def test_another_source_is_refused_unless_it_is_taken_as_new() -> None:
    before = {ROWS: (KnownOther(source="socket"),)}
    with pytest.raises(RejectedError, match="reads 'rate', but before it read 'socket'"):
        settle(found("rate"), before, ())
    assert settle(found("rate"), before, [ROWS], to_renew=[ROWS]).renewed == {ROWS}


def test_no_source_is_read_again_if_a_static_input_is_taken_as_new() -> None:
    settled = settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [SHOPS], to_renew=[SHOPS])
    assert not settled.renewed
    assert settled.renewed_inputs == {SHOPS}
    assert settled.replaces_round
    assert not settle(found("rate"), {ROWS: (KnownOther(source="rate"),)}, [SHOPS]).replaces_round


def test_only_options_for_static_inputs_accept_the_names_of_static_inputs() -> None:
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
