"""The cut of one stage in a manifest: its position and every file that a restore needs (see ``docs/reference/formats.md``)."""

from typing import Any

from pydantic import BaseModel, Field

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.table_shape import StagedFor


class StateFile(Part):
    """A file of a stage's Spark checkpoint at the cut."""

    path: str
    """The path below Spark's checkpoint directory."""
    stored: str
    """The path below the home of the same file, or of the bundle that has its bytes, kept by the checkpoint that needed it first."""
    offset: int | None = None
    """The position of its first byte in the bundle; None if :attr:`stored` has only this file."""
    size_bytes: int
    sha256: str


class ChannelCut(Part):
    """The part of a stage's private log that a restore needs: its identity, its last batch, and batches that a consumer may read again."""

    metadata: dict[str, Any]
    """Delta's ``metaData`` action, with the id in the consumers' offsets."""
    protocol: dict[str, Any]
    """Delta's ``protocol`` action."""
    staged_for: StagedFor | None
    """The public table of the stage's sink. None without a sink, or if another table takes its place."""
    staged_in: str
    """URI of the directory that the files' paths are relative to."""
    path: str
    """The path below the home of the file with the batches."""
    sha256: str
    first: BatchId
    """The first batch in the file that a restore needs. Consumers begin after it, unless it is batch 0."""
    last: BatchId
    """The last batch in the file; -1 if nothing was staged."""
    in_flight_rows: int
    """Rows that the slowest consumer had not read."""
    in_flight_size_bytes: int


class StagePosition(BaseModel):
    """The position of a stage in a checkpoint."""

    batch: BatchId
    """The last committed batch; -1 if the stage had no input at all."""
    watermark_ms: int
    """The watermark that the next batch would see."""
    rows: int
    """Rows that this stage has staged since the parent checkpoint."""
    late_rows: int
    """Rows dropped as late since the parent checkpoint, by Spark's count: after partial aggregation."""
    violations: dict[str, int] = Field(default_factory=dict)
    """Rows since the round began that violate an expectation, by expectation, if the stage drops or diverts such rows."""
    finished: bool
    """True if the stage is not started again within the incarnation."""
    drained: bool
    """True if its windows, joins and timers were flushed."""
    drain_batches: int
    """Number of batches of the drain; 0 if the stage keeps no state."""
    undrained: tuple[str, ...] = ()
    """Names of operators whose state a drain does not empty. They hold no rows back."""


class StageCut(StagePosition, Part):
    """The position of a stage at the cut, with everything that a restore needs."""

    query: str
    """Spark's query id."""
    offsets_sha256: str
    commits_sha256: str
    applied_watermark_ms: int | None = None
    """The watermark that the last committed batch saw: the rows of every window that ends by then are staged. None: no batch."""
    watermark_before_drain_ms: int | None = None
    """The watermark to go back to after a drain; None if no batch has moved it."""
    input_rows: dict[str, int] = Field(default_factory=dict)
    """Rows by input that the stage has read since the parent checkpoint, by Spark's count: after filters in a scan."""
    files: tuple[StateFile, ...] = ()
    """Files that the stage's query needs to go on after ``batch``."""
    begins: dict[StageName, BatchId] = Field(default_factory=dict)
    """For a stage that was added later: the last batch of each producer before the batches that it reads."""
    begins_now: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """The beginning of each source that the stage has not read yet, if it differs from the source's own beginning."""
    ended: tuple[InputName, ...] = ()
    """Inputs that have ended and that the running stage does not read any more. They may be gone."""
    channel: ChannelCut
