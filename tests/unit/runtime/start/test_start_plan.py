"""The plan of a start."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.protocol.ids import SinkName
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.runtime.tables.table_places import TablePlace

HOURLY, DAILY = SinkName("hourly"), SinkName("daily")
PLACES = {HOURLY: TablePlace("s3://lake/hourly"), DAILY: TablePlace("s3://lake/daily")}


@pytest.mark.parametrize(
    ("published", "tried_now"),
    [
        (None, {HOURLY, DAILY}),
        ({}, {HOURLY, DAILY}),
        ({HOURLY: "s3://lake/hourly"}, {DAILY}),
        ({HOURLY: "s3://pond/hourly", DAILY: "s3://lake/daily"}, {HOURLY}),
        ({DAILY: "s3://lake/hourly", HOURLY: "s3://lake/daily"}, set()),
    ],
    ids=["no checkpoint", "no sink", "another sink", "moved", "renamed"],
)
def test_a_start_tries_the_places_of_tables_that_no_checkpoint_publishes_into(
    published: dict[SinkName, str] | None, tried_now: set[SinkName]
) -> None:
    sinks = {sink: SimpleNamespace(table=table) for sink, table in (published or {}).items()}
    head = None if published is None else SimpleNamespace(sinks=sinks)
    plan: Any = SimpleNamespace(places=PLACES, facts=SimpleNamespace(head=head))
    assert StartPlan.untried.fget(plan).keys() == tried_now  # type: ignore[attr-defined]
