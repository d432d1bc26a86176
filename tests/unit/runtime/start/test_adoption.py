"""Adopted offsets that are refused before Spark starts."""

from pathlib import Path

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import InputName
from spark_jobs.runtime.start.adoption import old_offsets


@pytest.fixture
def graph() -> Graph:
    pipeline = Pipeline("shop")
    for name in ("orders", "payments"):
        pipeline.source(bounded=True, name=name)(lambda spark: None)
    pipeline.static(name="shops")(lambda spark: None)
    pipeline.stage(sink=DeltaSink("/paid"), name="paid")(lambda orders, payments, shops: None)
    pipeline.stage(sink=DeltaSink("/placed"), name="placed")(lambda orders, shops: None)
    pipeline.stage(sink=DeltaSink("/late"), name="late")(lambda placed: None)
    return pipeline.graph()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("ordres", "has no source of that name"),
        ("placed", "has no source of that name"),
        ("shops", "is a static input"),
        ("payments", "stage 'paid' reads it together with orders"),
    ],
)
def test_an_input_that_cannot_adopt_offsets_is_refused_by_name(graph: Graph, tmp_path: Path, source: str, problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem) as refused:
        old_offsets(graph, {InputName(source): str(tmp_path)})
    assert refused.value.evidence["source"] == source
    assert refused.value.remedy


def test_the_refusal_of_a_mistyped_source_suggests_the_right_name(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="Did you mean 'orders'"):
        old_offsets(graph, {InputName("ordres"): str(tmp_path)})


def test_all_streams_of_a_stage_may_adopt_together(graph: Graph, tmp_path: Path) -> None:
    directories = {InputName(name): str(tmp_path / name) for name in ("orders", "payments")}
    with pytest.raises(InvalidParameterError, match=f"{tmp_path}/orders has no offsets"):
        old_offsets(graph, directories)
    for name in directories:
        (tmp_path / name / "offsets").mkdir(parents=True)
        (tmp_path / name / "commits").mkdir()
        (tmp_path / name / "offsets" / "4").write_text('v1\n{}\n{"logOffset":4}')
        (tmp_path / name / "commits" / "4").write_text("v1\n{}")
    assert {name: found.batch for name, found in old_offsets(graph, directories).items()} == {"orders": 4, "payments": 4}


def test_a_start_without_adopted_offsets_is_accepted(graph: Graph) -> None:
    assert old_offsets(graph, {}) == {}
