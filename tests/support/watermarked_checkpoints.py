"""Checkpoints of a home, with the watermarks of their stages."""

from datetime import UTC, datetime
from typing import Any

from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.stage_cut import StateFile
from tests.support.staged_pipeline import HOURLY, StagedPipeline, a_stage_cut


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, 1, hour, minute, tzinfo=UTC)


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def take(pipeline: StagedPipeline, applied: datetime | None, following: datetime | None = None, **changes: Any) -> None:
    """Takes a checkpoint after a batch that saw the watermark ``applied``, and after which the next one sees ``following``."""
    state = (StateFile(path="state/0/0/1.delta", stored="s", size_bytes=1, sha256=""),)
    fields: dict[str, Any] = {
        "files": state,
        "applied_watermark_ms": None if applied is None else ms(applied),
        "watermark_ms": ms(following or applied or at(0)),
    }
    stage = a_stage_cut(1, **(fields | changes))
    pipeline.checkpoint({HOURLY: [(1, "monday")]}, stages={StageName(HOURLY): stage})
