"""Requests for a checkpoint, a savepoint or a stop of a running pipeline, or for a publication, and their answers."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from spark_jobs.protocol.codec import Document, Part
from spark_jobs.protocol.documents import BlockedPublication, ErrorReport
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, SinkName


class Wanted(StrEnum):
    """The kind of a request. The id of the request begins with it."""

    CHECKPOINT = "checkpoint"
    """A checkpoint now."""
    SAVEPOINT = "savepoint"
    """An aligned checkpoint, and a copy of it that belongs to the user. The pipeline runs on."""
    STOP = "stop"
    """A savepoint, after which the pipeline ends."""
    PUBLISH = "publish"
    """A publication with Spark. A separate process answers it, not the driver."""


def wanted_by(request: RequestId) -> Wanted:
    """Returns the kind of a request.

    Raises:
        ValueError: It is not the id of such a request.
    """
    return Wanted(request.partition("-")[0])


class CheckpointRequest(Document):
    """``requests/<wanted>-<id>.json``: a request for a publication, or for a checkpoint that is triggered after the request."""

    kind = "checkpoint_request"
    request: RequestId
    requested_at: datetime
    wanted: Wanted = Wanted.CHECKPOINT
    drain: bool = False
    """Only with a stop: first flush all windows, joins and timers. This finishes the pipeline."""
    target: str | None = None
    """URL of the savepoint's directory. None: below the home."""


class CheckpointedSink(Part):
    """The rows that a checkpoint has added to a sink. ``version`` is None while they are only staged."""

    table: str
    version: int | None
    rows: int
    size_bytes: int


class CheckpointResponse(Document):
    """``answers/<wanted>-<id>.json``: the answer to a request. It never changes. ``formats.md`` says how long it is kept."""

    kind = "checkpoint_response"
    request: RequestId
    attempt: AttemptNumber | None
    """None for a publication."""
    checkpoint: CheckpointId | None
    """None if there is an error."""
    duration_s: float | None = None
    """Time from the trigger to the manifest."""
    sinks: dict[SinkName, CheckpointedSink] = Field(default_factory=dict)
    savepoint: str | None = None
    """URL of the savepoint, if one was requested."""
    drained: bool = False
    """True if everything was flushed first."""
    behind: tuple[SinkName, ...] = ()
    """The sinks whose tables show less than the others in the checkpoint (:attr:`Manifest.sinks_behind`), and the held ones."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked at that time. None: every due publication is done."""
    error: ErrorReport | None = None
    answered_at: datetime
    drain: bool | None = None
    """True if a drain was requested; None if the request could not be read."""
    target: str | None = None
    """The requested directory."""


class AnsweredRequest(Document):
    """``answered/<milliseconds>.<wanted>-<id>.json``: orders the answers by time. The oldest are found without reading the answers."""

    kind = "answered_request"
    request: RequestId
    answered_at: datetime
