"""The document that makes a savepoint exist (see ``docs/reference/formats.md``)."""

from datetime import datetime

from spark_jobs.protocol.codec import LISTING_MAX_BYTES, Document, Part
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, PipelineName, PipelineUuid, RequestId


class SavepointFile(Part):
    """A file of a savepoint."""

    path: str
    """Below the savepoint's directory."""
    size_bytes: int
    sha256: str


class Savepoint(Document):
    """``savepoint.json``: this directory holds a whole checkpoint, wherever it is moved to. Written last."""

    kind = "savepoint"
    max_bytes = LISTING_MAX_BYTES
    pipeline: PipelineUuid
    pipeline_name: PipelineName
    incarnation: IncarnationId
    checkpoint: CheckpointId
    """Its number in the home that it was taken in."""
    drained: bool
    """Whether everything was flushed before: whoever goes on from it drops every later row as late."""
    request: RequestId | None
    """Whose it is."""
    taken_at: datetime
    """When the checkpoint was complete."""
    size_bytes: int
    files: tuple[SavepointFile, ...]
    """All others of the directory, by path."""
