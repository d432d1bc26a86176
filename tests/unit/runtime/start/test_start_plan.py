"""The plan of a start."""

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from spark_jobs.protocol.ids import SinkName
from spark_jobs.runtime.start.start_plan import StartPlan

HOURLY, DAILY, WEEKLY = SinkName("hourly"), SinkName("daily"), SinkName("weekly")


def test_a_plan_has_the_tables_that_are_there_and_that_the_newest_checkpoint_publishes_into() -> None:
    there = {sink: SimpleNamespace(table=SimpleNamespace(uri=f"s3://lake/{sink}")) for sink in (HOURLY, WEEKLY)}

    def published(head: Any) -> Set[str]:
        plan: Any = SimpleNamespace(facts=SimpleNamespace(head=head), tables=there | {DAILY: SimpleNamespace(table=None)})
        found: Set[str] = StartPlan.published.fget(plan)  # type: ignore[attr-defined]
        return found

    assert published(None) == set()
    assert published(SimpleNamespace(sinks={sink: SimpleNamespace(table=f"s3://lake/{sink}") for sink in (HOURLY, DAILY)})) == {
        "s3://lake/hourly"
    }
