from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.functions import call
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName, StageName

CLICKS: dict[str, Any] = {"bounded": False, "shared": True, "event_time": "at", "watermark_delay": "1 hour", "name": "clicks"}
SHARING = StageName("clicks_shared")


def clicked(**options: Any) -> Pipeline:
    """A pipeline with two stages that read one shared source."""
    pipeline = Pipeline("shop")
    pipeline.source(**CLICKS | options)(lambda spark: spark)
    pipeline.stage(name="seen", sink=DeltaSink("/seen"))(lambda clicks: clicks)
    pipeline.stage(name="bought", sink=DeltaSink("/bought"), inputs={"events": "clicks"})(lambda events: events)
    return pipeline


def refused(pipeline: Pipeline, problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        pipeline.graph()


def test_one_stage_reads_a_shared_source_for_all_stages_that_name_it() -> None:
    graph = clicked().graph()
    sharing = graph.stages[SHARING]
    assert list(graph.stages) == ["clicks_shared", "seen", "bought"]
    assert list(sharing.inputs.values()) == [graph.sources[InputName("clicks")]]
    assert graph.stages[StageName("seen")].inputs == {"clicks": sharing}
    assert graph.stages[StageName("bought")].inputs == {"events": sharing}


def test_the_stage_of_a_shared_source_passes_rows_on_unchanged_and_has_no_table() -> None:
    sharing = clicked().graph().stages[SHARING]
    assert sharing.sink is None
    assert call(sharing.function, {argument: [1, 2] for argument in sharing.inputs}) == [1, 2]


def test_the_stage_of_a_shared_source_has_the_event_time_and_the_delay_of_the_source() -> None:
    graph = clicked().graph()
    sharing, source = graph.stages[SHARING], graph.sources[InputName("clicks")]
    assert (sharing.event_time, sharing.delay_ms) == (source.event_time, source.delay_ms) == ("at", 3_600_000)


def test_a_source_without_event_time_is_shared_without_one() -> None:
    sharing = clicked(event_time=None, watermark_delay=None).graph().stages[SHARING]
    assert (sharing.event_time, sharing.delay_ms) == (None, None)


def test_stages_that_read_a_shared_source_never_end() -> None:
    assert all(stage.unbounded for stage in clicked().graph().stages.values())


def test_inputs_that_are_not_shared_stay_as_they_are() -> None:
    pipeline = clicked()
    pipeline.source(bounded=False, name="views")(lambda spark: spark)
    pipeline.stage(name="both", sink=DeltaSink("/both"))(lambda clicks, views, seen: clicks)
    inputs = pipeline.graph().stages[StageName("both")].inputs
    assert {argument: node.name for argument, node in inputs.items()} == {
        "clicks": "clicks_shared",
        "views": "views",
        "seen": "seen",
    }
    assert isinstance(inputs["seen"], Stage)


def test_the_fingerprint_depends_on_whether_a_source_is_shared() -> None:
    assert clicked().graph().fingerprint() != clicked(shared=False).graph().fingerprint()


def test_a_bounded_source_is_not_shared() -> None:
    with pytest.raises(InvalidPipelineError, match="source 'clicks': shared=True is for unbounded sources"):
        Pipeline("shop").source(**CLICKS | {"bounded": True})(lambda spark: spark)


@pytest.mark.parametrize("shared", [None, 1, "yes"])
def test_a_value_of_shared_that_is_not_a_boolean_is_refused(shared: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="shared=.* is neither True nor False"):
        Pipeline("shop").source(**CLICKS | {"shared": shared})(lambda spark: spark)


@pytest.mark.parametrize("name", ["clicks_shared", "Clicks_Shared"])
def test_the_name_of_the_stage_of_a_shared_source_cannot_be_used_by_another(name: str) -> None:
    pipeline = clicked()
    pipeline.stage(name=name, sink=DeltaSink("/taken"))(lambda clicks: clicks)
    refused(pipeline, f"source 'clicks': .*'clicks_shared' reads it for all others, and '{name}' is declared already")


def test_the_name_of_the_stage_of_a_shared_source_has_to_be_a_valid_name() -> None:
    name = "c" * 60
    pipeline = Pipeline("shop")
    pipeline.source(**CLICKS | {"name": name})(lambda spark: spark)
    pipeline.stage(name="seen", sink=DeltaSink("/seen"), inputs={"events": name})(lambda events: events)
    refused(pipeline, f"'{name}_shared' cannot be a name")


def test_a_shared_source_that_nothing_reads_is_refused_by_its_own_name() -> None:
    pipeline = clicked()
    pipeline.source(**CLICKS | {"name": "views"})(lambda spark: spark)
    refused(pipeline, "source 'views': no stage reads it")


def test_a_test_reads_a_shared_source_through_the_same_stage() -> None:
    graph = clicked().rewired({"clicks": lambda spark: spark}, "/tables").graph()
    assert not graph.unbounded
    assert list(graph.stages) == ["clicks_shared", "seen", "bought"]
