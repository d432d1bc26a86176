"""The plan of a start."""

from types import SimpleNamespace
from typing import Any

from spark_jobs.protocol.ids import SinkName
from spark_jobs.runtime.start.start_plan import StartPlan


def test_a_plan_has_the_tables_that_the_newest_checkpoint_publishes_into() -> None:
    def published(head: Any) -> frozenset[str]:
        plan: Any = SimpleNamespace(facts=SimpleNamespace(head=head))
        found: frozenset[str] = StartPlan.published.fget(plan)  # type: ignore[attr-defined]
        return found

    assert published(None) == frozenset()
    sinks = {
        SinkName("hourly"): SimpleNamespace(table="s3://lake/hourly"),
        SinkName("daily"): SimpleNamespace(table="s3://lake/daily"),
    }
    assert published(SimpleNamespace(sinks=sinks)) == {"s3://lake/hourly", "s3://lake/daily"}
