"""The decision about a start request that names a savepoint, or whose home began with one."""

from typing import Any

import pytest

from spark_jobs.protocol.documents import Manifest, OnRewind, RestoreFrom
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import IncarnationId, InputName, RoundNumber
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.decision import (
    Begin,
    BeginFromSavepoint,
    BeginIncarnation,
    Continue,
    HomeFacts,
    check_spark,
    decide,
    named_savepoint,
)
from tests.support.start_decisions import GRAPH, PARAMETERS, attempt, manifest, request, round_document

RESTORE = RestoreFrom(savepoint="file:///savepoint")


def facts(*attempts: Any, **given: Any) -> HomeFacts:
    fields = {"latest_round": None, "final_of": lambda run: None, "published": dict} | given
    return HomeFacts(attempts[-1] if attempts else None, **fields)


def taken(**changes: Any) -> Manifest:
    return manifest(7, 3, incarnation="other").model_copy(update=changes)


def asked(**given: Any) -> StartRequest:
    return request("tuesday", **({"restore": RESTORE} | given))


def test_a_savepoint_begins_an_incarnation_in_an_empty_home() -> None:
    assert decide(asked(), facts(savepoint=taken()), PARAMETERS, GRAPH) == BeginFromSavepoint(
        RoundNumber(1), None, OnRewind.REFUSE
    )


def test_a_savepoint_begins_an_incarnation_after_any_earlier_one() -> None:
    home = facts(attempt(1, "monday", 1), latest_round=round_document(1, "monday"), savepoint=taken(), staging=True)
    decision = decide(asked(on_rewind=OnRewind.KEEP), home, {"flights": "/other"}, GRAPH)
    assert decision == BeginFromSavepoint(RoundNumber(2), IncarnationId("one"), OnRewind.KEEP)


def test_a_savepoint_of_other_stages_is_refused() -> None:
    with pytest.raises(RejectedError, match="hourly cannot go on: it read nothing and reads departures"):
        decide(asked(), facts(savepoint=taken(graph={"stages": {"hourly": {}}})), PARAMETERS, GRAPH)


def test_a_savepoint_may_be_restored_into_other_tables() -> None:
    def graph(where: dict[str, Any]) -> dict[str, Any]:
        sink = {"name": "hourly", "mode": "append"} | where
        return {"stages": {"hourly": {"inputs": {"departures": "departures"}, "sink": sink}, "copied": {"sink": None}}}

    home = facts(savepoint=taken(graph=graph({"path": "/old"})))
    for where in ({"path": "/new"}, {"table": "new.hourly"}):
        assert isinstance(decide(asked(), home, PARAMETERS, graph(where)), BeginFromSavepoint)
    with pytest.raises(RejectedError, match="hourly cannot go on: sink was"):
        decide(asked(), home, PARAMETERS, graph({"path": "/old", "mode": "complete"}))


def test_a_removed_stage_is_dropped_only_if_the_start_allows_it() -> None:
    more = {"stages": GRAPH["stages"] | {"daily": {"inputs": {"hourly": "hourly"}}}}
    home = facts(savepoint=taken(graph=more))
    with pytest.raises(RejectedError, match="the pipeline no longer has: daily"):
        decide(asked(), home, PARAMETERS, GRAPH)
    assert isinstance(decide(asked(allow_dropped=True), home, PARAMETERS, GRAPH), BeginFromSavepoint)
    assert isinstance(decide(asked(), facts(savepoint=taken(graph=GRAPH)), PARAMETERS, more), BeginFromSavepoint)


def test_a_savepoint_without_any_stage_of_the_pipeline_is_refused() -> None:
    with pytest.raises(RejectedError, match="the pipeline has none of its stages"):
        decide(asked(allow_dropped=True), facts(savepoint=taken(graph={"stages": {"other": {}}})), PARAMETERS, GRAPH)


def test_a_savepoint_that_was_taken_after_a_drain_is_refused_unless_the_start_allows_it() -> None:
    home = facts(savepoint=taken(drained=True))
    with pytest.raises(RejectedError, match="taken after a drain"):
        decide(asked(), home, PARAMETERS, GRAPH)
    allowed = RESTORE.model_copy(update={"allow_drained": True})
    assert isinstance(decide(asked(restore=allowed), home, PARAMETERS, GRAPH), BeginFromSavepoint)


@pytest.mark.parametrize(
    "given", [{"fresh": True}, {"on_rewind": OnRewind.REPLACE}, {"adopt_offsets": {InputName("departures"): "file:///old"}}]
)
def test_another_option_for_the_beginning_is_refused_together_with_a_savepoint(given: dict[str, Any]) -> None:
    with pytest.raises(RejectedError, match="cannot have"):
        decide(asked(**given), facts(savepoint=taken()), PARAMETERS, GRAPH)


class TestAnInterruptedRestore:
    """A start from a savepoint was interrupted, and a user starts again."""

    def test_is_continued_by_the_same_run(self) -> None:
        home = facts(attempt(1, "tuesday", 1), begun_by=asked())
        assert named_savepoint(asked(), home) is None
        assert decide(asked(), home, PARAMETERS, GRAPH) == Begin(RoundNumber(1), None)

    def test_is_continued_by_another_run(self) -> None:
        begun = round_document(1, "tuesday")
        home = facts(attempt(1, "tuesday", 1), begun_by=asked(), latest_round=begun)
        assert decide(request("wednesday"), home, PARAMETERS, GRAPH) == Continue(begun, None)

    @pytest.mark.parametrize(
        "other",
        [
            request("wednesday", restore=RESTORE),
            asked(restore=RestoreFrom(savepoint="file:///another")),
            asked(restore=RestoreFrom(savepoint="file:///savepoint", allow_drained=True)),
            asked(on_rewind=OnRewind.KEEP),
        ],
    )
    def test_is_replaced_by_a_start_with_other_options(self, other: StartRequest) -> None:
        assert named_savepoint(other, facts(attempt(1, "tuesday", 1), begun_by=asked())) == other.restore

    def test_is_not_continued_by_a_fresh_start(self) -> None:
        home = facts(attempt(1, "tuesday", 1), begun_by=request("tuesday", fresh=True))
        assert named_savepoint(asked(), home) == RESTORE
        begun = facts(attempt(1, "tuesday", 1), begun_by=asked())
        assert isinstance(decide(request("tuesday", fresh=True), begun, {}, GRAPH), BeginIncarnation)

    def test_is_not_replaced_by_a_run_with_other_parameters_and_without_the_savepoint(self) -> None:
        """A round without a planned batch may be replaced by another round, unless its state is in a savepoint."""
        home = facts(attempt(1, "tuesday", 1), begun_by=asked(), latest_round=round_document(1, "tuesday"))
        with pytest.raises(RejectedError, match="other parameters"):
            decide(request("wednesday"), home, {"flights": "/other"}, GRAPH)


def test_a_savepoint_of_a_newer_spark_is_refused_and_one_of_an_older_spark_is_accepted() -> None:
    decision = BeginFromSavepoint(RoundNumber(1), None, OnRewind.REFUSE)
    with pytest.raises(RejectedError, match=r"was taken with Spark 4\.2, but this is Spark 4\.0"):
        check_spark(decision, asked(), facts(savepoint=taken()), "4.0", can_repartition=False)
    check_spark(decision, asked(), facts(savepoint=taken(spark="4.0")), "4.0", can_repartition=False)
    with pytest.raises(RejectedError, match="cannot change the number of state partitions to 4"):
        check_spark(decision, asked(state_partitions=4), facts(savepoint=taken(spark="4.0")), "4.0", can_repartition=False)
