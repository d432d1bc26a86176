"""Homes whose metrics are read."""

from pathlib import Path
from typing import Any

from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import InputLag, RunState, StageState, StageStatus, Status, ToleratedRows
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, InputName, RoundNumber, RunId, StageName
from spark_jobs.protocol.losses import PassedOver, StagedFile
from tests.support.command_line import UsedHome
from tests.support.documents import ATTEMPT
from tests.support.staged_pipeline import HOURLY, NOW


def a_status(**changes: Any) -> Status:
    stages = {
        StageName("hourly"): StageStatus(
            state=StageState.RUNNING,
            rows_in=12,
            rows_per_s=1.5,
            busy=0.25,
            late_rows=4,
            restarts=2,
            watermark_ms=int(NOW.timestamp() * 1000),
            lag={"events": InputLag(rows=7), "table": InputLag(versions=2), "folder": InputLag(files=5)},
        ),
        StageName("daily"): StageStatus(state=StageState.FAILED, reason="division by zero"),
    }
    fields: dict[str, Any] = {"stages": stages, "checkpoint": CheckpointId(1)} | changes
    return Status(attempt=AttemptNumber(3), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, **fields)


def tolerant_status() -> Status:
    """The heartbeat of two tolerant stages and one without a tolerance."""
    an_hour, half_an_hour = ToleratedRows(rows=10, interval_ms=3_600_000), ToleratedRows(rows=10, interval_ms=1_800_000)
    stages = {
        StageName("hourly"): StageStatus(state=StageState.RUNNING, tolerates=an_hour),
        StageName("daily"): StageStatus(state=StageState.RUNNING, tolerates=half_an_hour),
        StageName("weekly"): StageStatus(state=StageState.RUNNING),
    }
    return a_status(stages=stages)


def home_with_a_checkpoint(directory: Path) -> UsedHome:
    home = UsedHome(directory)
    home.begin()
    home.staged.checkpoint({HOURLY: [(1, "a"), (2, "b")]})
    return home


def passes_over(ledger: LossLedger, rows: int, stage: str = "hourly") -> None:
    """Records that a stage passes rows over, in a file of their own."""
    file = StagedFile(batch=BatchId(4), file=f"{len(ledger.names().recorded)}.parquet", size_bytes=9)
    loss = PassedOver(input=InputName("copy"), stage=StageName(stage), unit=file, rows=rows, error="it fails", tries=3)
    ledger.record(RoundNumber(1), ATTEMPT, [loss])
