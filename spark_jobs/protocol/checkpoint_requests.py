"""Documents by which somebody asks a running pipeline for a checkpoint, a savepoint or its stop, and is answered."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from spark_jobs.protocol.codec import Document, Part
from spark_jobs.protocol.documents import BlockedPublication, ErrorReport
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, SinkName


class Wanted(StrEnum):
    """What somebody asks for. The id of the request begins with it."""

    CHECKPOINT = "checkpoint"
    """A checkpoint, now."""
    SAVEPOINT = "savepoint"
    """A checkpoint that is aligned, and a copy of it that is the asker's own. The pipeline runs on."""
    STOP = "stop"
    """A savepoint, after which the pipeline ends."""


class CheckpointRequest(Document):
    """``requests/<wanted>-<id>.json``: somebody wants a checkpoint that is triggered after this."""

    kind = "checkpoint_request"
    request: RequestId
    requested_at: datetime
    wanted: Wanted = Wanted.CHECKPOINT
    drain: bool = False
    """Only with a stop: everything that is held back (windows, joins, timers) is flushed first, for ever."""
    target: str | None = None
    """URL of the directory that the savepoint is to be in; None: below the home."""


class CheckpointedSink(Part):
    """What a checkpoint has added to a sink. ``version`` is None while its rows are staged only."""

    table: str
    version: int | None
    rows: int
    size_bytes: int


class CheckpointResponse(Document):
    """``answers/<wanted>-<id>.json``: what became of a request. It never changes, and is kept for as long as ``formats.md`` says."""

    kind = "checkpoint_response"
    request: RequestId
    attempt: AttemptNumber
    checkpoint: CheckpointId | None
    """None with an error."""
    duration_s: float | None = None
    """From its trigger to its manifest."""
    sinks: dict[SinkName, CheckpointedSink] = Field(default_factory=dict)
    savepoint: str | None = None
    """URL of the savepoint, where one was asked for."""
    drained: bool = False
    """Whether everything was flushed first."""
    behind: tuple[SinkName, ...] = ()
    """The sinks whose tables show less than the others in the checkpoint: see :attr:`Manifest.sinks_behind`; and those that are held."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked then; None: everything that is due is public."""
    error: ErrorReport | None = None
    answered_at: datetime
    drain: bool | None = None
    """Whether a drain was asked for; None: the request could not be read."""
    target: str | None = None
    """The directory that was asked for."""


class AnsweredRequest(Document):
    """``answered/<milliseconds>.<wanted>-<id>.json``: orders the answers by time, so that the oldest are found without reading them."""

    kind = "answered_request"
    request: RequestId
    answered_at: datetime
