"""The document that completes a savepoint (see ``docs/reference/formats.md``)."""

from datetime import datetime

from spark_jobs.protocol.codec import LISTING_MAX_BYTES, Document, Part
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, PipelineName, PipelineUuid, RequestId


class SavepointFile(Part):
    """A file of a savepoint."""

    path: str
    """The path below the savepoint's directory."""
    size_bytes: int
    sha256: str


class Savepoint(Document):
    """``savepoint.json``: this directory holds a complete checkpoint, even after a move. It is written last."""

    kind = "savepoint"
    max_bytes = LISTING_MAX_BYTES
    pipeline: PipelineUuid
    pipeline_name: PipelineName
    incarnation: IncarnationId
    checkpoint: CheckpointId
    """Number of the checkpoint in the home of the savepoint."""
    drained: bool
    """True if everything was flushed before. A pipeline that continues it drops every later row as late."""
    request: RequestId | None
    """The request that the savepoint belongs to."""
    taken_at: datetime
    """Time at which the checkpoint was complete."""
    size_bytes: int
    files: tuple[SavepointFile, ...]
    """All other files of the directory, by path."""
