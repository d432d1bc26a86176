"""The plan of a start."""

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from spark_jobs.protocol.ids import SinkName
from spark_jobs.runtime.start.start_plan import known_places
from spark_jobs.runtime.tables.table_places import TablePlace

HOURLY, DAILY, WEEKLY = SinkName("hourly"), SinkName("daily"), SinkName("weekly")


def test_the_tables_that_are_there_and_that_the_newest_checkpoint_publishes_into_are_known() -> None:
    places = {sink: TablePlace(f"s3://lake/{sink}") for sink in (HOURLY, DAILY, WEEKLY)}
    there: Any = {sink: SimpleNamespace(table=SimpleNamespace(uri=places[sink].uri)) for sink in (HOURLY, WEEKLY)}

    def known(head: Any) -> Set[SinkName]:
        facts: Any = SimpleNamespace(head=head)
        return known_places(facts, places, there | {DAILY: SimpleNamespace(table=None)}).keys()

    assert known(None) == set()
    assert known(SimpleNamespace(sinks={sink: SimpleNamespace(table=places[sink].uri) for sink in (HOURLY, DAILY)})) == {HOURLY}
