"""Whether an attempt may begin with its state in another number of partitions."""

import pytest
from pydantic import BaseModel

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, RoundNumber
from spark_jobs.runtime.start.decision import Begin, BeginIncarnation, HomeFacts, check_partitions
from tests.unit.runtime.start.test_decision import attempt, request

NEXT = Begin(RoundNumber(2), CheckpointId(1))
ANEW = BeginIncarnation(RoundNumber(2), None, OnRewind.KEEP)


def graph(*, bounded: bool) -> Graph:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=bounded, name="departures")(lambda spark: None)
    pipeline.stage(name="hourly", sink=DeltaSink("/tables/hourly"))(lambda departures: departures)
    return pipeline.graph()


def facts(partitions: int | None) -> HomeFacts:
    return HomeFacts([attempt(1, "monday", 1, state_partitions=partitions)], None, {}, dict)


@pytest.mark.parametrize(
    ("asked", "before", "decision", "bounded"),
    [(None, None, NEXT, True), (8, 8, NEXT, True), (8, 4, ANEW, True), (8, 4, NEXT, False)],
    ids=["nobody asks", "as it is", "begun anew", "its inputs go on"],
)
def test_state_may_be_in_so_many_partitions(asked: int | None, before: int | None, decision: Begin, bounded: bool) -> None:
    check_partitions(request("tuesday", state_partitions=asked), decision, facts(before), graph(bounded=bounded))


@pytest.mark.parametrize("before", [None, 4])
def test_a_pipeline_that_goes_on_in_its_work_directory_keeps_the_number(before: int | None) -> None:
    with pytest.raises(RejectedError, match="cannot be brought into 8 partitions"):
        check_partitions(request("tuesday", state_partitions=8), NEXT, facts(before), graph(bounded=True))


def test_no_partitions_are_refused_before_anything_starts() -> None:
    class Params(BaseModel):
        pass

    with pytest.raises(InvalidParameterError, match="state_partitions=0"):
        Pipeline("flights", params=Params).run(spark=None, home="/nowhere", state_partitions=0)  # type: ignore[arg-type]
