"""The progress of a pipeline, by its heartbeats."""

from datetime import UTC, datetime

import pytest

from airflow_provider.waits.goals import Goal, WaitFor
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, RunId, StageName

IDLE = StageStatus(state=StageState.RUNNING)
WORKED = StageStatus(state=StageState.RUNNING, batch=BatchId(0))
FAILING = StageStatus(state=StageState.RESTARTING, batch=BatchId(3), restarts=1)
FAILED = StageStatus(state=StageState.FAILED, batch=BatchId(3), restarts=20)


def status(*stages: StageStatus, state: RunState = RunState.RUNNING, checkpoint: int | None = None) -> Status:
    return Status(
        attempt=AttemptNumber(1),
        run=RunId("r"),
        state=state,
        updated_at=datetime.now(UTC),
        stages={StageName(f"stage_{number}"): stage for number, stage in enumerate(stages)},
        checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
    )


def runs(seen: Status | None, now_s: float = 0.0, goal: Goal | None = None) -> bool:
    return (goal or Goal(WaitFor.RUNNING, idle_s=30.0)).is_reached(seen, now_s, started=True)


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (None, False),
        (status(state=RunState.STARTING), False),
        (status(IDLE), False),
        (status(IDLE, WORKED), True),
        (status(IDLE, checkpoint=1), True),
        (status(WORKED, FAILING), False),
        (status(WORKED, FAILED), False),
        (status(WORKED, state=RunState.FAILED), False),
    ],
)
def test_a_pipeline_runs_once_it_has_done_a_batch_or_a_checkpoint_and_no_stage_is_failing(
    seen: Status | None, counts: bool
) -> None:
    assert runs(seen) is counts


def test_a_pipeline_without_rows_runs_once_it_has_not_failed_for_a_while() -> None:
    goal = Goal(WaitFor.RUNNING, idle_s=30.0)
    assert [runs(status(IDLE), now_s, goal) for now_s in (100.0, 129.0, 130.0)] == [False, False, True]


def test_a_failure_restarts_the_settle_time() -> None:
    goal = Goal(WaitFor.RUNNING, idle_s=30.0)
    seen = [(100.0, IDLE), (120.0, FAILING), (131.0, IDLE), (160.0, IDLE), (161.0, IDLE)]
    assert [runs(status(stage), now_s, goal) for now_s, stage in seen] == [False, False, False, False, True]


@pytest.mark.parametrize("started", [True, False])
def test_a_wait_for_submitted_ends_once_a_driver_was_started(started: bool) -> None:
    assert Goal(WaitFor.SUBMITTED).is_reached(None, 0.0, started=started) is started


def test_a_wait_for_the_final_checkpoint_ends_only_with_an_answer() -> None:
    assert not Goal(WaitFor.FINAL_CHECKPOINT).is_reached(status(WORKED, checkpoint=9), 1e9, started=True)
