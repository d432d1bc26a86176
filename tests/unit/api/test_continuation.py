"""The fate of each stage when changed code continues from a savepoint."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.continuation import Fate, StageFate, fates, with_fate


class Params(BaseModel):
    pass


def declared(**changes: Any) -> dict[str, Any]:
    """Describes a pipeline that counts arrivals per hour and per day. ``changes`` replaces parts of it."""
    pipeline = Pipeline("live")
    source = {"bounded": False, "event_time": "at", "watermark_delay": "1 minute"} | changes.get("source", {})
    pipeline.source(name="arrivals", **source)(lambda spark: None)
    pipeline.static(name="airlines", refresh=changes.get("refresh", "unpinned"))(lambda spark: None)
    hourly = {"sink": DeltaSink("/tables/hourly"), "event_time": "hour", "watermark_delay": "1 minute"}
    pipeline.stage(name="hourly", **(hourly | changes.get("hourly", {})))(lambda arrivals, airlines: arrivals)
    if changes.get("daily", True):
        pipeline.stage(name="daily", sink=DeltaSink("/tables/daily"))(lambda hourly: hourly)
    if changes.get("weekly"):
        pipeline.stage(name="weekly", sink=DeltaSink("/tables/weekly"))(lambda daily: daily)
    return pipeline.graph().describe()


@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        ({"at": "-n"}, {"at": "-n"}, Fate.CONTINUES),
        ({"at": "-n"}, {"at": "n"}, Fate.IMPOSSIBLE),
        ({}, {"at": "n"}, Fate.IMPOSSIBLE),
    ],
)
def test_a_stage_cannot_continue_with_another_expression_for_a_column_that_orders_rows(
    before: dict[str, str], after: dict[str, str], fate: Fate
) -> None:
    described = [
        declared(hourly={"sink": DeltaSink("/t", mode="upsert", keys=["a"], sequence_by="at", computed_by=each)})
        for each in (before, after)
    ]
    (found,) = [each for each in fates(*described) if each.stage == "hourly"]
    assert found.fate is fate


def fate_of(stage: str, **changes: Any) -> StageFate:
    (found,) = [each for each in fates(declared(), declared(**changes)) if each.stage == stage]
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"source": {"watermark_delay": "1 hour"}},
        {"hourly": {"watermark_delay": "1 hour"}},
        {"refresh": "round"},
        {"hourly": {"sink": DeltaSink("/elsewhere", name="hourly")}},
        {"hourly": {"sink": DeltaSink(table="main.flights.hourly", name="hourly")}},
        {"hourly": {"sink": DeltaSink("/tables/hourly", partition_by=["hour"])}},
        {"weekly": True},
    ],
    ids=[
        "nothing",
        "the delay of the source",
        "the delay of the stage",
        "the refresh of a static input",
        "the path of a table",
        "the name of a table",
        "the partitioning of a table",
        "another reader",
    ],
)
def test_a_stage_continues_after_changes_on_which_its_state_does_not_depend(changes: dict[str, Any]) -> None:
    assert [fate_of(name, **changes).fate for name in ("hourly", "daily")] == [Fate.CONTINUES] * 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source": {"event_time": "then"}}, "its input arrivals was a source"),
        ({"source": {"bounded": True}}, "its input arrivals was a source"),
        ({"hourly": {"event_time": "then"}}, "event_time was 'hour' and is 'then'"),
        ({"hourly": {"sink": None}}, "and is None"),
        ({"hourly": {"sink": DeltaSink("/tables/hourly", mode="upsert", keys=["a"], sequence_by="b")}}, "sink was"),
    ],
    ids=["event time of the input", "end of the input", "event time of the stage", "no sink", "another mode"],
)
def test_a_stage_whose_state_does_not_fit_cannot_continue(changes: dict[str, Any], why: str) -> None:
    found = fate_of("hourly", **changes)
    assert found.fate is Fate.IMPOSSIBLE
    assert why in found.why


def test_a_stage_cannot_continue_if_its_source_became_a_stage_of_the_same_name() -> None:
    before, after = declared(), declared()
    after["stages"] = {"arrivals": {"inputs": {"raw": "raw"}}} | after["stages"]
    del after["sources"]["arrivals"]
    assert [str(each) for each in with_fate(fates(before, after), Fate.IMPOSSIBLE)] == [
        "hourly cannot go on: its input arrivals was a source (unbounded, event_time='at') and is a stage"
    ]


def test_a_new_stage_starts_empty_and_a_removed_stage_is_dropped() -> None:
    assert fate_of("weekly", weekly=True) == StageFate("weekly", Fate.STARTS_EMPTY)
    assert fate_of("daily", daily=False) == StageFate("daily", Fate.DROPPED)


def test_an_existing_stage_cannot_continue_behind_a_new_stage() -> None:
    """A finished stage after the new one would have to start again, too."""

    def between(change: Callable[[Pipeline], None]) -> dict[str, Any]:
        pipeline = Pipeline("live")
        pipeline.source(name="arrivals", bounded=True)(lambda spark: None)
        change(pipeline)
        return pipeline.graph().describe()

    def one(pipeline: Pipeline) -> None:
        pipeline.stage(name="last", sink=DeltaSink("/last"))(lambda arrivals: arrivals)

    def two(pipeline: Pipeline) -> None:
        pipeline.stage(name="first")(lambda arrivals: arrivals)
        pipeline.stage(name="last", sink=DeltaSink("/last"))(lambda first: first)

    assert [str(each) for each in fates(between(one), between(two))] == [
        "first starts empty",
        "last cannot go on: it read arrivals and reads first",
    ]
