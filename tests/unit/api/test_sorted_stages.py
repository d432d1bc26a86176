"""A stage that drops or diverts rows becomes several stages, which sort its rows."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import SinkName, StageName

DIVERTING: dict[str, Any] = {"expect": {"positive": "amount > 0"}, "violations": DeltaSink("{lake}/rejected")}


def shop(**options: Any) -> Pipeline:
    """A pipeline with a stage that has expectations, and a stage that reads it."""
    pipeline = Pipeline("shop")
    pipeline.source(bounded=True, name="events")(lambda spark: spark)
    pipeline.stage(name="orders", **{"sink": DeltaSink("/orders")} | DIVERTING | {"violations": None} | options)(
        lambda events: events
    )
    pipeline.stage(name="daily", sink=DeltaSink("/daily"))(lambda orders: orders)
    return pipeline


def diverting(**options: Any) -> Pipeline:
    return shop(violations=DeltaSink("/rejected"), **options)


def reads(graph: Graph) -> dict[str, list[str]]:
    return {name: [node.name for node in stage.inputs.values()] for name, stage in graph.stages.items()}


def tables(graph: Graph) -> dict[str, str | None]:
    return {name: stage.sink.name if stage.sink else None for name, stage in graph.stages.items()}


def test_a_stage_that_diverts_rows_becomes_a_stage_for_each_of_its_tables() -> None:
    graph = diverting().graph()
    assert reads(graph) == {
        "orders": ["events"],
        "orders_accepted": ["orders"],
        "orders_violations": ["orders"],
        "daily": ["orders_accepted"],
    }
    assert tables(graph) == {
        "orders": None,
        "orders_accepted": "orders",
        "orders_violations": "orders_violations",
        "daily": "daily",
    }


def test_a_stage_that_drops_rows_has_no_stage_for_the_dropped_rows() -> None:
    graph = shop(on_violation="drop").graph()
    assert list(graph.stages) == ["orders", "orders_accepted", "daily"]


def test_a_stage_whose_violations_fail_the_batch_stays_one_stage() -> None:
    graph = shop().graph()
    assert reads(graph) == {"orders": ["events"], "daily": ["orders"]}
    assert graph.stages[StageName("orders")].expectations is not None
    assert graph.fingerprint() == shop(expect=None).graph().fingerprint()


def test_a_condition_may_change_and_the_state_stays() -> None:
    assert diverting().graph().fingerprint() == diverting(expect={"small": "amount < 9"}).graph().fingerprint()


def test_a_stage_without_a_table_can_divert_rows_too() -> None:
    graph = diverting(sink=None).graph()
    assert tables(graph) == {"orders": None, "orders_accepted": None, "orders_violations": "orders_violations", "daily": "daily"}


def test_one_sorting_stage_may_read_another() -> None:
    pipeline = diverting()
    pipeline.stage(name="paid", sink=DeltaSink("/paid"), expect={"known": "id IS NOT NULL"}, on_violation="drop")(
        lambda orders: orders
    )
    assert reads(pipeline.graph())["paid"] == ["orders_accepted"]
    assert reads(pipeline.graph())["paid_accepted"] == ["paid"]


def test_a_shared_source_is_read_through_its_own_stage() -> None:
    pipeline = Pipeline("shop")
    pipeline.source(bounded=False, shared=True, name="events")(lambda spark: spark)
    pipeline.stage(name="orders", sink=DeltaSink("/orders"), expect={"p": "true"}, on_violation="drop")(lambda events: events)
    assert reads(pipeline.graph())["orders"] == ["events_shared"]


def test_max_channel_bytes_also_limits_the_stages_that_sort_rows() -> None:
    pipeline = Pipeline("shop")
    pipeline.source(bounded=False, name="events")(lambda spark: spark)
    pipeline.stage(name="orders", expect={"p": "true"}, on_violation="drop", max_channel_bytes=9)(lambda events: events)
    pipeline.stage(name="daily", sink=DeltaSink("/daily"))(lambda orders: orders)
    stages = pipeline.graph().stages
    assert [stages[StageName(name)].limits.max_channel_bytes for name in ("orders", "orders_accepted")] == [9, 9]


@pytest.mark.parametrize("name", ["orders_accepted", "orders_violations"])
def test_the_names_of_the_sorting_stages_cannot_be_used_by_others(name: str) -> None:
    pipeline = diverting()
    pipeline.stage(name=name, sink=DeltaSink("/other", name="other"))(lambda events: events)
    with pytest.raises(InvalidPipelineError, match="'orders'.*is declared already"):
        pipeline.graph()


def test_the_tables_of_rows_and_of_violations_have_names_and_parameters_of_their_own() -> None:
    pipeline = Pipeline("shop")
    pipeline.source(bounded=True, name="events")(lambda spark: spark)
    rejected = DeltaSink("{lake}/rejected", name="orders")
    pipeline.stage(name="orders", sink=DeltaSink("/orders"), expect={"p": "true"}, violations=rejected)(lambda events: events)
    with pytest.raises(InvalidPipelineError, match="have one name"):
        pipeline.graph()
    other = Pipeline("shop")
    other.source(bounded=True, name="events")(lambda spark: spark)
    other.stage(name="orders", sink=DeltaSink("/orders"), **DIVERTING)(lambda events: events)
    with pytest.raises(InvalidPipelineError, match="lake"):
        other.graph()


def test_a_test_has_its_violations_in_its_own_directory() -> None:
    graph = diverting().rewired({}, "/tmp/of-a-test").graph()
    assert graph.sinks[SinkName("orders_violations")].address.text == "/tmp/of-a-test/orders_violations"
    assert graph.sinks[SinkName("orders")].address.text == "/tmp/of-a-test/orders"
