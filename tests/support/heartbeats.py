"""Heartbeats of a driver."""

from datetime import UTC, datetime
from typing import Any

from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, BatchId, RunId, StageName


def status(state: RunState = RunState.RUNNING, batch: int = 3, **stage: Any) -> Status:
    """Returns the heartbeat of a pipeline with a running stage and a waiting one."""
    hourly = StageStatus(state=StageState.RUNNING, batch=BatchId(batch), **stage)
    stages = {StageName("hourly"): hourly, StageName("daily"): StageStatus(state=StageState.WAITING)}
    return Status(
        attempt=AttemptNumber(2), run=RunId("ours"), state=state, updated_at=datetime(2026, 1, 1, tzinfo=UTC), stages=stages
    )
