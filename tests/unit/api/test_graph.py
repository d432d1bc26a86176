import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.functions import call
from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import OnEnd, Publish
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName, StageName


class Params(BaseModel):
    warehouse: str = "/data"


def function_of(*arguments: str) -> Any:
    """Returns a function that takes these arguments and returns them."""
    scope: dict[str, Any] = {}
    exec(f"def made({', '.join(arguments)}): return ({''.join(f'{argument}, ' for argument in arguments)})", scope)
    return scope["made"]


def flights(**options: Any) -> Pipeline:
    """A pipeline with one source and one static input."""
    pipeline = Pipeline("flights", **{"params": Params} | options)
    pipeline.source(bounded=True, event_time="departure", watermark_delay="1 hour", name="departures")(function_of("spark"))
    pipeline.static(name="airlines")(function_of())
    return pipeline


def add(pipeline: Pipeline, name: str, *arguments: str, **options: Any) -> Pipeline:
    """Adds a stage with a sink of its own."""
    pipeline.stage(name=name, **{"sink": DeltaSink(f"/{name}")} | options)(function_of(*arguments))
    return pipeline


def whole() -> Pipeline:
    pipeline = add(flights(), "hourly", "departures", sink=DeltaSink("{warehouse}/hourly", partition_by=["origin"]))
    return add(pipeline, "daily", "hourly", "airlines", event_time="day_end", watermark_delay="1 day")


def refused(pipeline: Pipeline, problem: str, **options: Any) -> InvalidPipelineError:
    with pytest.raises(InvalidPipelineError, match=problem) as caught:
        pipeline.graph(**options)
    assert "Pipeline 'flights'" in caught.value.failed
    assert caught.value.remedy
    return caught.value


def test_the_graph_links_each_argument_to_its_input() -> None:
    graph = whole().graph()
    daily = graph.stages[StageName("daily")]
    assert list(daily.inputs) == ["hourly", "airlines"]
    assert isinstance(daily.inputs["hourly"], Stage)
    assert daily.inputs["hourly"] is graph.stages[StageName("hourly")]
    assert isinstance(daily.inputs["airlines"], Static)
    assert isinstance(graph.stages[StageName("hourly")].inputs["departures"], Source)
    assert (daily.event_time, daily.delay_ms) == ("day_end", 86_400_000)


def test_the_function_of_a_stage_is_called_with_its_inputs_by_name() -> None:
    daily = whole().graph().stages[StageName("daily")]
    assert call(daily.function, {argument: node.name for argument, node in daily.inputs.items()}) == ("hourly", "airlines")


def test_a_stage_may_read_a_stage_that_is_declared_later() -> None:
    pipeline = add(flights(), "daily", "hourly", "airlines")
    assert list(add(pipeline, "hourly", "departures").graph().stages) == ["hourly", "daily"]


def test_a_stage_may_read_one_input_twice() -> None:
    pipeline = add(flights(), "pairs", "left", "right", "airlines", inputs={"left": "departures", "right": "departures"})
    inputs = pipeline.graph().stages[StageName("pairs")].inputs
    assert inputs["left"] is inputs["right"]


def test_a_stage_without_a_sink_may_be_read_by_others() -> None:
    graph = add(add(flights(), "joined", "departures", "airlines", sink=None), "daily", "joined").graph()
    assert list(graph.sinks) == ["daily"]


@given(st.data())
def test_stages_come_after_their_inputs_and_else_as_declared(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    place = data.draw(st.permutations(range(count)))
    reads = {  # stage i may read the stages that come before it in the hidden order
        index: data.draw(st.sets(st.sampled_from([other for other in range(count) if place[other] < place[index]])))
        if place[index]
        else set()
        for index in range(count)
    }
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="events")(function_of())
    for index in range(count):
        add(pipeline, f"s{index}", "events", *(f"s{other}" for other in sorted(reads[index])))

    left, expected = list(range(count)), []
    while left:
        following = next(index for index in left if not reads[index] & set(left))
        left.remove(following)
        expected.append(f"s{following}")
    assert list(pipeline.graph().stages) == expected


@given(st.integers(1, 6), st.integers(0, 3))
def test_every_cycle_is_found_and_shown(length: int, tail: int) -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="events")(function_of())
    for index in range(length):
        add(pipeline, f"s{index}", "events", f"s{(index - 1) % length}")
    for index in range(tail):
        add(pipeline, f"t{index}", f"t{index - 1}" if index else "s0")
    cycle = refused(pipeline, "cycle: s").evidence["cycle"]
    assert cycle[0] == cycle[-1]
    assert sorted(cycle[1:]) == [f"s{index}" for index in range(length)]
    assert all(int(after[1:]) == (int(before[1:]) + 1) % length for before, after in pairwise(cycle))


def test_a_cycle_is_shown_in_the_direction_of_the_data() -> None:
    pipeline = add(add(flights(), "a", "departures", "airlines", "b"), "b", "a")
    refused(pipeline, "its stages form a cycle: (a -> b -> a|b -> a -> b)")


def test_an_unknown_input_is_refused_with_the_nearest_one() -> None:
    error = refused(add(flights(), "hourly", "departure"), "stage 'hourly': it reads 'departure', which is not declared")
    assert error.remedy == "Did you mean 'departures'?"


def test_an_unknown_input_behind_another_argument_is_named_with_it() -> None:
    refused(add(flights(), "hourly", "events", inputs={"events": "eu"}), r"it reads 'eu' \(inputs= of the argument 'events'\)")


def test_a_pipeline_without_a_stage_is_refused() -> None:
    refused(flights(), "it has no stage")


def test_a_pipeline_without_a_sink_is_refused() -> None:
    refused(add(flights(), "hourly", "departures", "airlines", sink=None), "no stage has a sink")


def test_a_stage_that_reads_only_static_inputs_is_refused() -> None:
    refused(add(flights(), "copied", "airlines"), "it reads only static inputs")


@pytest.mark.parametrize(("options", "bounded"), [({}, True), ({"trigger_interval": "1 minute"}, False)])
def test_a_stage_whose_inputs_are_static_computes_a_complete_table_for_each_row_of_a_clock(
    options: dict[str, Any], bounded: bool
) -> None:
    pipeline = add(flights(), "hourly", "departures")
    add(pipeline, "names", "airlines", "params", sink=DeltaSink("/names", mode="complete"), **options)
    graph = pipeline.graph()
    stage, clock = graph.stages[StageName("names")], graph.sources[InputName("names_clock")]
    assert (list(stage.inputs), stage.output_mode, stage.unbounded) == (["names_clock", "airlines"], "append", not bounded)
    assert (clock.bounded, graph.unbounded) == (bounded, not bounded)
    rewired = pipeline.rewired({}, "/tables").graph()
    assert rewired.sources[InputName("names_clock")].bounded is bounded


def test_a_clock_takes_no_name_of_another_part() -> None:
    pipeline = add(flights(), "names", "airlines", sink=DeltaSink("/names", mode="complete"))
    refused(
        add(pipeline, "names_clock", "departures"), "the source 'names_clock' says when .*, and 'names_clock' is declared already"
    )


def test_a_stage_that_reads_nothing_is_refused() -> None:
    refused(add(flights(), "made", "params"), "it reads nothing")


def test_a_source_that_nothing_reads_is_refused() -> None:
    pipeline = add(flights(), "hourly", "departures", "airlines")
    pipeline.source(bounded=True, name="weather")(function_of())
    refused(pipeline, "source 'weather': no stage reads it")


def test_a_static_input_that_nothing_reads_is_refused() -> None:
    refused(add(flights(), "hourly", "departures"), "static 'airlines': no stage reads it")


def test_a_stage_that_nothing_reads_and_that_has_no_sink_is_refused() -> None:
    pipeline = add(flights(), "hourly", "departures", "airlines")
    refused(add(pipeline, "lost", "hourly", sink=None), "stage 'lost': it has no sink, and no stage reads it")


@pytest.mark.parametrize("part", ["source", "static", "stage"])
def test_a_function_that_takes_params_needs_a_model(part: str) -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="departures")(function_of(*["params"] * (part == "source")))
    pipeline.static(name="airlines")(function_of(*["params"] * (part == "static")))
    add(pipeline, "hourly", "departures", "airlines", *["params"] * (part == "stage"))
    refused(pipeline, f"{part} '.*': its function takes 'params', but the pipeline has none")


def test_suspending_needs_a_delay_on_each_source_with_event_time() -> None:
    pipeline = add(flights(on_end="suspend"), "hourly", "departures", "airlines", "others")
    pipeline.source(bounded=True, event_time="arrival", name="others")(function_of())
    refused(pipeline, "source 'others': on_end=\"suspend\" needs a watermark_delay")
    assert pipeline.graph(on_end="drain").on_end is OnEnd.DRAIN


def test_suspending_needs_a_delay_if_a_stage_begins_an_event_time() -> None:
    pipeline = Pipeline("flights", on_end="suspend")
    pipeline.source(bounded=True, name="departures")(function_of("spark"))
    add(pipeline, "hourly", "departures", event_time="hour_end")
    refused(pipeline, "stage 'hourly': on_end=\"suspend\" needs a watermark_delay")


def test_a_stage_inherits_the_delay_of_its_inputs_if_its_pipeline_suspends() -> None:
    pipeline = add(add(flights(on_end="suspend"), "hourly", "departures", "airlines"), "daily", "hourly", event_time="day_end")
    assert list(pipeline.graph().stages) == ["hourly", "daily"]


@pytest.mark.parametrize("held", [None, True, False])
def test_suspending_works_with_a_delay_and_with_or_without_a_held_watermark(held: bool | None) -> None:
    pipeline = Pipeline("flights", on_end="suspend")
    options: dict[str, Any] = {"event_time": "departure", "watermark_delay": "1 day", "hold_watermark": held}
    pipeline.source(bounded=True, name="departures", **options)(function_of())
    assert add(pipeline, "hourly", "departures").graph().on_end is OnEnd.SUSPEND


def test_suspending_works_without_event_time() -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="departures")(function_of())
    assert add(pipeline, "copied", "departures").graph(on_end="suspend").on_end is OnEnd.SUSPEND


def live(**options: Any) -> Pipeline:
    """A pipeline with one unbounded and one bounded source."""
    pipeline = Pipeline("flights", **options)
    pipeline.source(bounded=False, name="clicks")(function_of())
    pipeline.source(bounded=True, name="history")(function_of())
    return pipeline


def test_a_stage_never_ends_if_an_input_upstream_has_no_end() -> None:
    pipeline = add(add(live(), "seen", "clicks"), "joined", "seen", "history")
    graph = add(pipeline, "archived", "history").graph()
    assert graph.unbounded
    assert {name: stage.unbounded for name, stage in graph.stages.items()} == {"seen": True, "joined": True, "archived": False}
    assert not whole().graph().unbounded


def test_sinks_publish_every_checkpoint_if_any_input_has_no_end() -> None:
    pipeline = add(add(add(live(), "seen", "clicks"), "joined", "seen", "history"), "archived", "history")
    policies = {name: sink.publish for name, sink in pipeline.graph().sinks.items()}
    assert policies == {"seen": "every_checkpoint", "joined": "every_checkpoint", "archived": "every_checkpoint"}


def test_the_policy_of_a_sink_overrides_the_default_from_its_inputs() -> None:
    pipeline = add(live(), "seen", "clicks", sink=DeltaSink("/seen", publish="external"))
    graph = add(pipeline, "archived", "history", sink=DeltaSink("/archived", publish="every_checkpoint")).graph()
    assert [sink.publish for sink in graph.sinks.values()] == ["external", "every_checkpoint"]


def test_the_policy_of_a_run_overrides_the_policy_of_the_sink() -> None:
    pipeline = add(live(), "seen", "clicks", sink=DeltaSink("/seen", publish="final"))
    graph = add(pipeline, "archived", "history").graph(publish="external")
    assert {sink.publish for sink in graph.sinks.values()} == {Publish.EXTERNAL}


def test_the_policy_final_is_refused_if_inputs_never_end() -> None:
    final = DeltaSink("/joined", publish="final")
    pipeline = add(add(live(), "seen", "clicks"), "joined", "seen", "history", sink=final)
    error = refused(pipeline, "sink 'joined': publish=\"final\" waits for the end of all inputs")
    assert "every_checkpoint" in (error.remedy or "")
    refused(add(add(live(), "seen", "clicks"), "archived", "history"), "sink 'seen': publish=\"final\"", publish="final")
    late = DeltaSink("/archived", publish="final")
    refused(add(add(live(), "seen", "clicks"), "archived", "history", sink=late), "sink 'archived': publish=\"final\"")


@pytest.mark.parametrize(("declared", "override"), [("suspend", None), ("drain", "suspend")])
def test_a_round_without_an_end_cannot_be_suspended(declared: str, override: str | None) -> None:
    pipeline = add(add(live(on_end=declared), "seen", "clicks"), "archived", "history")
    refused(pipeline, "source 'clicks': on_end=\"suspend\" ends a round where its inputs end", on_end=override)
    assert pipeline.graph(on_end="drain").unbounded


def test_an_event_time_of_a_stage_without_an_end_needs_a_delay() -> None:
    pipeline = add(add(live(), "seen", "clicks", sink=None), "joined", "seen", "history", event_time="at")
    refused(pipeline, "stage 'joined': an unbounded input upstream needs a watermark_delay here")
    delayed = add(live(), "seen", "clicks", event_time="at", watermark_delay="1 hour")
    assert add(delayed, "joined", "seen", "history", event_time="at").graph().unbounded
    assert add(add(live(), "seen", "clicks"), "archived", "history", event_time="at").graph().unbounded


def test_only_an_unbounded_stage_may_have_a_trigger_interval() -> None:
    graph = add(add(live(), "seen", "clicks", trigger_interval="10 seconds"), "archived", "history").graph()
    assert [stage.limits.trigger_interval_ms for stage in graph.stages.values()] == [10_000, None]
    pipeline = add(add(live(), "seen", "clicks"), "archived", "history", trigger_interval="10 seconds")
    refused(pipeline, "stage 'archived': it has a trigger_interval, but only bounded inputs")


@pytest.mark.parametrize(("first", "second"), [("clicks", "history"), ("history", "clicks")])
def test_a_stage_waits_for_stages_that_read_it_at_the_same_time(first: str, second: str) -> None:
    graph = add(add(live(), "made", first, max_channel_bytes=9), "joined", "made", second).graph()
    assert graph.stages[StageName("made")].limits.max_channel_bytes == 9


def test_a_stage_without_consumers_cannot_have_max_channel_bytes() -> None:
    pipeline = add(add(live(), "seen", "clicks", max_channel_bytes=1), "archived", "history")
    refused(pipeline, "stage 'seen': it has max_channel_bytes, .* but no stage does")


def test_a_stage_does_not_wait_for_a_stage_that_begins_after_its_end() -> None:
    pipeline = add(add(live(), "seen", "clicks", "archived"), "archived", "history", max_channel_bytes=1)
    assert pipeline.graph().unbounded
    error = refused(
        add(pipeline, "counted", "archived"), "stage 'archived': it has max_channel_bytes and would wait for ever: 'counted'"
    )
    assert error.evidence["consumers"] == ["counted"]


def test_tables_follow_the_order_of_the_stages() -> None:
    pipeline = whole()
    tables = pipeline.graph().tables(pipeline.bind({}))
    assert [(name, str(table)) for name, table in tables.items()] == [("hourly", "/data/hourly"), ("daily", "/daily")]


def test_the_description_has_everything_on_which_a_restart_depends() -> None:
    assert whole().graph().describe() == {
        "sources": {"departures": {"bounded": True, "event_time": "departure", "delay_ms": 3_600_000, "held": False}},
        "statics": {"airlines": {"refresh": "round"}},
        "stages": {
            "hourly": {
                "inputs": {"departures": "departures"},
                "event_time": None,
                "delay_ms": None,
                "sink": {"name": "hourly", "path": "{warehouse}/hourly", "mode": "append", "partition_by": ["origin"]},
            },
            "daily": {
                "inputs": {"hourly": "hourly", "airlines": "airlines"},
                "event_time": "day_end",
                "delay_ms": 86_400_000,
                "sink": {"name": "daily", "path": "/daily", "mode": "append", "partition_by": []},
            },
        },
    }


def test_the_description_survives_json_and_a_different_order() -> None:
    graph = whole().graph()
    assert json.loads(json.dumps(graph.describe(), sort_keys=True)) == graph.describe()
    assert graph.fingerprint() == whole().graph().fingerprint()


@pytest.mark.parametrize(
    "options",
    [
        {"conf": {"spark.sql.ansi.enabled": "true"}},
        {"max_files_per_trigger": 3},
        {"max_bytes_per_trigger": 3},
        {"sink": DeltaSink("/hourly", publish="external")},
    ],
)
def test_options_that_may_change_between_runs_are_not_in_the_fingerprint(options: Any) -> None:
    before = add(flights(), "hourly", "departures", "airlines").graph()
    after = add(flights(), "hourly", "departures", "airlines", **options).graph(on_end="suspend")
    assert after.fingerprint() == before.fingerprint()


def changed(**options: Any) -> Graph:
    return add(flights(), "hourly", "departures", "airlines", **options).graph()


@pytest.mark.parametrize(
    "options",
    [
        {"event_time": "t"},
        {"event_time": "t", "watermark_delay": "1 second"},
        {"sink": DeltaSink("/x", name="hourly")},
        {"sink": DeltaSink("/hourly", name="hours")},
        {"sink": DeltaSink("/hourly", partition_by=["o"])},
    ],
)
def test_options_on_which_the_state_depends_are_in_the_fingerprint(options: Any) -> None:
    assert changed(**options).fingerprint() != changed().fingerprint()


def test_a_new_stage_changes_the_fingerprint() -> None:
    two = add(add(flights(), "hourly", "departures", "airlines"), "daily", "hourly").graph()
    assert two.fingerprint() != changed().fingerprint()


def test_two_sinks_with_one_table_are_refused_when_the_parameters_are_known() -> None:
    pipeline = add(whole(), "copied", "departures", sink=DeltaSink("/data/hourly/"))
    graph = pipeline.graph()
    with pytest.raises(InvalidPipelineError, match="is also the table of sink"):
        graph.tables(pipeline.bind({}))
    assert len(graph.tables(pipeline.bind({"warehouse": "/elsewhere"}))) == 3
