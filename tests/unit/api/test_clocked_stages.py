"""Stages without a stream: those with static inputs, and those that read the tables of other stages."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.full_refresh import refreshed_stages
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import StageName

COMPLETE = DeltaSink("/lake/report", mode="complete")
REPORT = StageName("report")


def reporting(*, bounded: bool = True, table: bool = True, reads: str = "orders", **options: Any) -> Graph:
    """Returns the graph of a report over two tables."""
    pipeline = Pipeline("shop")

    @pipeline.source(bounded=bounded)
    def events(spark: Any) -> Any: ...

    @pipeline.static
    def names(spark: Any) -> Any: ...

    @pipeline.stage(sink=DeltaSink("/lake/orders") if table else None)
    def orders(events: Any) -> Any: ...

    @pipeline.stage(sink=DeltaSink("/lake/others"))
    def others(events: Any) -> Any: ...

    @pipeline.stage(inputs={"orders": reads}, **{"sink": COMPLETE, "reads_tables": True, "name": "report", **options})
    def report(orders: Any, others: Any, names: Any) -> Any: ...

    return pipeline.graph()


def test_a_stage_that_reads_tables_has_a_clock_and_begins_after_its_inputs() -> None:
    graph = reporting()
    stage = graph.stages[REPORT]
    assert list(stage.inputs) == ["report_clock", "orders", "others", "names"]
    assert list(graph.stages) == ["orders", "others", "report"]
    assert not stage.unbounded
    assert graph.describe()["stages"]["report"]["reads_tables"] is True


def test_a_stage_that_reads_tables_streams_no_rows() -> None:
    stage = reporting().stages[REPORT]
    assert stage.streamed == ()
    assert reporting().reads()[REPORT][0] == ()


def test_a_full_refresh_of_one_table_does_not_need_the_others_that_a_stage_reads() -> None:
    assert refreshed_stages(reporting(), ["orders"]) == {"orders"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sink": DeltaSink("/lake/report")}, "it reads tables, so each round computes all of its rows again"),
        ({"sink": None}, "it reads tables, so each round computes all of its rows again"),
        ({"reads": "events"}, "it reads tables, but 'events' has none"),
        ({"table": False}, "it reads tables, but 'orders' has none"),
        ({"bounded": False}, "it reads the table of 'orders', which has an unbounded source upstream"),
        ({"trigger_interval": "1 minute"}, "it has a trigger_interval, but only bounded inputs"),
    ],
)
def test_a_stage_that_cannot_compute_a_table_from_tables_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem) as caught:
        reporting(**options)
    assert caught.value.remedy
