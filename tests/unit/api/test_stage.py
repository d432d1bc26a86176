from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.stage import BeginAt, DeclaredStage, RateLimits
from spark_jobs.protocol.errors import InvalidPipelineError


def copied(events: Any) -> Any: ...


def declared(function: Any, **options: Any) -> DeclaredStage:
    pipeline = Pipeline("flights")
    pipeline.stage(name="stage", **options)(function)
    stage = pipeline._declarations["stage"]
    assert isinstance(stage, DeclaredStage)
    return stage


def test_argument_names_are_the_inputs_in_their_order() -> None:
    def joined(flights: Any, airlines: Any, airports: Any) -> Any: ...

    assert list(declared(joined).inputs.items()) == [(name, name) for name in ("flights", "airlines", "airports")]


def test_an_argument_may_stand_for_another_input() -> None:
    assert declared(copied, inputs={"events": "eu_events"}).inputs == {"events": "eu_events"}


def test_the_argument_params_is_no_input() -> None:
    def limited(events: Any, params: Any) -> Any: ...

    assert list(declared(limited).inputs) == ["events"]


def test_an_argument_with_a_default_is_an_input_only_if_it_is_mapped() -> None:
    def limited(events: Any, limit: int = 3, airlines: Any = None) -> Any: ...

    assert declared(limited, inputs={"airlines": "carriers"}).inputs == {"events": "events", "airlines": "carriers"}


@pytest.mark.parametrize("argument", ["event", "params", 3])
def test_a_mapped_argument_has_to_exist(argument: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="which is not an argument for an input"):
        declared(copied, inputs={argument: "eu_events"})


def test_an_argument_is_mapped_to_a_name() -> None:
    with pytest.raises(InvalidPipelineError, match="which is not a name"):
        declared(copied, inputs={"events": copied})


def test_a_stage_that_takes_spark_is_refused() -> None:
    def reading(spark: Any, events: Any) -> Any: ...

    with pytest.raises(InvalidPipelineError, match="takes 'spark', which only sources and static inputs get"):
        declared(reading)


def test_a_stage_names_its_event_time_and_delay() -> None:
    stage = declared(copied, event_time="hour_end", watermark_delay="1 hour")
    assert (stage.event_time, stage.delay_ms) == ("hour_end", 3_600_000)


def test_a_delay_needs_an_event_time() -> None:
    with pytest.raises(InvalidPipelineError, match="stage 'stage': watermark_delay is given without event_time"):
        declared(copied, watermark_delay="1 hour")


def test_a_stage_has_the_limits_that_it_declares() -> None:
    limits = declared(copied, max_files_per_trigger=3, max_bytes_per_trigger=1 << 30, max_channel_bytes=7).limits
    assert limits == RateLimits(max_files_per_trigger=3, max_bytes_per_trigger=1 << 30, max_channel_bytes=7)


def test_a_batch_begins_as_soon_as_there_is_data_by_default() -> None:
    assert declared(copied).limits.trigger_interval_ms is None
    assert declared(copied, trigger_interval="1 minute 30 seconds").limits.trigger_interval_ms == 90_000


@pytest.mark.parametrize(("interval", "problem"), [("0 seconds", "is shorter than 1 millisecond"), (10, "is not a string")])
def test_an_invalid_trigger_interval_is_refused(interval: Any, problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"stage 'stage': trigger_interval=.* {problem}"):
        declared(copied, trigger_interval=interval)


@pytest.mark.parametrize("limit", ["max_files_per_trigger", "max_bytes_per_trigger", "max_channel_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1g", True])
def test_a_limit_is_a_whole_number_above_zero(limit: str, value: Any) -> None:
    with pytest.raises(InvalidPipelineError, match=f"{limit}=.* is not a whole number above 0"):
        declared(copied, **{limit: value})


def test_a_new_stage_begins_at_the_beginning_of_its_sources_by_default() -> None:
    assert [declared(copied).begin, declared(copied, begin="now").begin] == [BeginAt.EARLIEST, BeginAt.NOW]
    with pytest.raises(InvalidPipelineError, match="begin='latest'"):
        declared(copied, begin="latest")


def test_the_fingerprint_does_not_depend_on_where_a_stage_begins() -> None:
    graphs = []
    for begin in ("earliest", "now"):
        pipeline = Pipeline("flights")
        pipeline.source(bounded=True, name="events")(lambda spark: None)
        pipeline.stage(sink=DeltaSink("/copied"), begin=begin)(copied)
        graphs.append(pipeline.graph().fingerprint())
    assert graphs[0] == graphs[1]
