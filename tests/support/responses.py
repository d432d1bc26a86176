"""Responses to requests for checkpoints."""

from datetime import UTC, datetime

from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def response(request: RequestId, *, at: datetime = NOW, checkpoint: int = 1) -> CheckpointResponse:
    return CheckpointResponse(request=request, attempt=AttemptNumber(1), checkpoint=CheckpointId(checkpoint), answered_at=at)
