"""The steps of a stop, when any of them fails."""

from collections.abc import Sequence
from typing import cast

import pytest

from spark_jobs.control.request_table import RequestEvent
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest, StopStatus
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    FencedError,
    IncompleteError,
    InterruptedRunError,
    RejectedError,
    RunCancelledError,
    SparkJobFailedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.states import StopState
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.checkpoints.stopping import Stop
from tests.support.staged_pipeline import NOW, a_manifest


def request(wanted: Wanted, name: str, *, drain: bool = False) -> CheckpointRequest:
    return CheckpointRequest(request=RequestId(f"{wanted.value}-{name}"), requested_at=NOW, wanted=wanted, drain=drain)


SAVE, CHECKPOINT, OTHER = request(Wanted.SAVEPOINT, "s"), request(Wanted.CHECKPOINT, "c"), request(Wanted.STOP, "b")


class World:
    """A pipeline, its requests, and a record of their steps. One of the steps may fail."""

    def __init__(self, *, drain: bool = False, fails: dict[str, StreamPipelineError] | None = None) -> None:
        self.request = request(Wanted.STOP, "a", drain=drain)
        self.fails = fails or {}
        self.done: list[str] = []
        self.told: list[StopState] = []
        self.answers: dict[RequestId, str] = {}
        self.may_be_blocked = False

    def run(self, *others: CheckpointRequest) -> Manifest | None:
        return Stop([self.request, *others], self, cast(RequestedCheckpoints, self), self.tell).run()

    def tell(self, stop: StopStatus) -> None:
        assert (stop.request, stop.drain) == (self.request.request, self.request.drain)
        self.told.append(stop.state)

    def _do(self, step: str) -> None:
        if step in self.fails:
            raise self.fails[step]
        self.done.append(step)

    def check(self, request: CheckpointRequest) -> None:
        self._do("check")

    def quiesce(self, request: CheckpointRequest) -> None:
        self._do("quiesce")

    def flush(self, request: CheckpointRequest) -> None:
        self._do("flush")

    def checkpoint(self, request: CheckpointRequest) -> Manifest:
        self._do("checkpoint")
        return a_manifest(7, request=request.request)

    def save(self, request: CheckpointRequest, manifest: Manifest) -> str:
        self._do("save")
        return "file:///savepoint"

    def publish(self, manifest: Manifest, *, may_block: bool = False) -> None:
        self.may_be_blocked = may_block
        self._do("publish")

    def ended_with(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        self._do("answer")
        self.answers |= {each.request: f"checkpoint {manifest.checkpoint}" for each in requests}

    def reject_or_log(self, event: RequestEvent, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        self.answers |= {each.request: type(error).__name__ for each in requests}

    def run_on(self) -> None:
        self._do("run_on")


AWAY = StorageError("The disk is away.")
NOT_PACKED = SparkJobFailedError("No executor is left.")


@pytest.mark.parametrize("drain", [False, True])
def test_each_step_of_a_stop_is_done_once_in_order_and_shown(drain: bool) -> None:
    world = World(drain=drain)
    manifest = world.run()
    assert manifest is not None
    assert manifest.checkpoint == 7
    flushed = ["flush"] if drain else []
    assert world.done == ["check", "quiesce", *flushed, "checkpoint", "save", "publish", "answer"]
    assert world.told[-1] is StopState.STOPPED
    assert (StopState.DRAINED in world.told) is drain


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_can_end_with_a_blocked_publication_and_a_drain_cannot(drain: bool) -> None:
    world = World(drain=drain)
    world.run()
    assert world.may_be_blocked is not drain


def test_all_requests_get_the_checkpoint_of_the_stop_but_another_stop_gets_an_error_that_names_it() -> None:
    world = World()
    world.run(OTHER, SAVE, CHECKPOINT)
    assert world.answers == {
        OTHER.request: "ConflictError",
        world.request.request: "checkpoint 7",
        SAVE.request: "checkpoint 7",
        CHECKPOINT.request: "checkpoint 7",
    }


@pytest.mark.parametrize("step", ["check", "quiesce", "checkpoint"])
@pytest.mark.parametrize("error", [AWAY, DeadlineExceededError("Not in time."), RejectedError("It is taken."), NOT_PACKED])
def test_a_stop_that_fails_before_its_checkpoint_is_answered_and_the_pipeline_runs_on(
    step: str, error: StreamPipelineError
) -> None:
    world = World(fails={step: error})
    assert world.run() is None
    assert world.answers == {world.request.request: type(error).__name__}
    assert (world.done[-1], world.told[-1]) == ("run_on", StopState.FAILED)


@pytest.mark.parametrize(
    ("step", "error"),
    [("flush", AWAY), ("flush", InterruptedRunError("Its code fails.")), ("checkpoint", AWAY), ("checkpoint", NOT_PACKED)],
)
def test_a_drain_that_fails_after_rows_were_flushed_is_answered_and_needs_a_restart(
    step: str, error: StreamPipelineError
) -> None:
    world = World(drain=True, fails={step: error})
    with pytest.raises(InterruptedRunError, match=r"drain for stop-a has failed"):
        world.run()
    assert world.answers == {world.request.request: type(error).__name__}
    assert "run_on" not in world.done


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("step", ["save", "publish", "answer"])
def test_a_stop_that_fails_after_its_checkpoint_is_left_open_for_the_next_attempt(step: str, *, drain: bool) -> None:
    world = World(drain=drain, fails={step: AWAY})
    with pytest.raises(IncompleteError) as raised:
        world.run()
    savepoint = None if step == "save" else "file:///savepoint"
    assert raised.value.evidence == {"request": "stop-a", "checkpoint": 7, "savepoint": savepoint}
    assert (savepoint or "its savepoint is not complete yet") in str(raised.value)
    assert world.answers == {}
    assert world.told[-1] is StopState.INCOMPLETE


@pytest.mark.parametrize("step", ["quiesce", "checkpoint", "publish"])
@pytest.mark.parametrize(
    "error", [FencedError("Another is live."), RunCancelledError("Cancelled."), InterruptedRunError("A stage fails.")]
)
def test_an_attempt_that_ends_for_another_reason_leaves_the_stop_to_the_next_attempt(
    step: str, error: StreamPipelineError
) -> None:
    world = World(fails={step: error})
    with pytest.raises(type(error)):
        world.run()
    assert world.answers == {}
    assert "run_on" not in world.done


@pytest.mark.parametrize("error", [FencedError("Another is live."), RunCancelledError("Cancelled.")])
def test_a_drain_that_is_cancelled_is_not_answered(error: StreamPipelineError) -> None:
    world = World(drain=True, fails={"flush": error})
    with pytest.raises(type(error)):
        world.run()
    assert world.answers == {}
