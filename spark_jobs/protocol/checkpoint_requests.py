"""Documents by which somebody asks a running pipeline for a checkpoint, and is answered."""

from datetime import datetime

from pydantic import Field

from spark_jobs.protocol.codec import Document, Part
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, SinkName


class CheckpointRequest(Document):
    """``requests/checkpoint-<id>.json``: somebody wants a checkpoint that is triggered after this."""

    kind = "checkpoint_request"
    request: RequestId
    requested_at: datetime


class CheckpointedSink(Part):
    """What a checkpoint has added to a sink. ``version`` is None while its rows are staged only."""

    table: str
    version: int | None
    rows: int
    size_bytes: int


class CheckpointResponse(Document):
    """``responses/checkpoint-<id>.json``: what became of a request. Once written it is the answer, as long as it is kept."""

    kind = "checkpoint_response"
    request: RequestId
    attempt: AttemptNumber
    checkpoint: CheckpointId | None
    """None with an error."""
    duration_s: float | None = None
    """From its trigger to its manifest."""
    sinks: dict[SinkName, CheckpointedSink] = Field(default_factory=dict)
    error: ErrorReport | None = None
    answered_at: datetime
