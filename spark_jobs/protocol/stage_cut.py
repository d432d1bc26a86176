"""What a manifest says of one stage: where it was cut, and every file that a restore needs (see ``docs/reference/formats.md``)."""

from typing import Any

from pydantic import Field

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.table_shape import StagedFor


class StateFile(Part):
    """A file of Spark's checkpoint of a stage, as it was at the cut."""

    path: str
    """Below Spark's checkpoint directory."""
    stored: str
    """Below the home: the same file, pinned by the checkpoint that needed it first."""
    size_bytes: int
    sha256: str


class ChannelCut(Part):
    """What a restore needs of a stage's private log: what the log is, its last batch, and those that a consumer may read again."""

    metadata: dict[str, Any]
    """Delta's ``metaData`` action, with the id that consumers' offsets carry."""
    protocol: dict[str, Any]
    """Delta's ``protocol`` action."""
    staged_for: StagedFor | None
    """The public table of the stage's sink; None without one, and where another table takes its place."""
    staged_in: str
    """URI of the directory that the files' paths are relative to."""
    path: str
    """Below the home: the file with the batches."""
    sha256: str
    first: BatchId
    """The first batch in the file that a restore needs; consumers begin after it, unless it is batch 0."""
    last: BatchId
    """The last one; -1 where nothing was staged."""
    in_flight_rows: int
    """Rows that the slowest consumer had not consumed."""
    in_flight_size_bytes: int


class StageCut(Part):
    """Where a stage was cut."""

    query: str
    """Spark's query id."""
    batch: BatchId
    """The last committed batch; -1 where the stage had no input at all."""
    offsets_sha256: str
    commits_sha256: str
    watermark_ms: int
    finished: bool
    drained: bool
    drain_batches: int
    watermark_before_drain_ms: int | None = None
    """Where the watermark goes back to if somebody goes on after the drain; None where no batch has moved it."""
    undrained: tuple[str, ...] = ()
    """Operators whose state a drain does not empty, by name: they hold no rows back."""
    rows: int
    """Rows that this stage has staged since its parent checkpoint."""
    late_rows: int
    """Rows dropped as late since the parent checkpoint, as Spark counts them: after partial aggregation."""
    input_rows: dict[str, int] = Field(default_factory=dict)
    """By input the rows that the stage has read since the parent checkpoint, as Spark counts them: after filters that a scan applies."""
    violations: dict[str, int] = Field(default_factory=dict)
    """By expectation the rows that violate it since the round began, where the stage drops or diverts such rows."""
    files: tuple[StateFile, ...] = ()
    """What the stage's query needs to go on after ``batch``."""
    begins: dict[StageName, BatchId] = Field(default_factory=dict)
    """By producer the last batch before those that it reads, where it was not there from the beginning."""
    begins_now: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """By source where it begins, as long as it has read nothing of the source, where that is not where the source says."""
    ended: tuple[InputName, ...] = ()
    """Inputs that have ended and that the stage does not read any more, although it goes on; they may be gone."""
    channel: ChannelCut
