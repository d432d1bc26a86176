"""A part of rounds and manifests: the identity of each stream of a source, and the position where reading has begun.

See :mod:`spark_jobs.protocol.documents`.
"""

from typing import Literal

from pydantic import Field

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.pins import FilePin
from spark_jobs.protocol.table_shape import TableShape


class DeltaCommit(Part):
    """A commit of a Delta table."""

    version: int
    sha256: str
    """Hash of the beginning of its file."""


class KnownDelta(Part):
    """A Delta table."""

    format: Literal["delta"] = "delta"
    path: str
    """The path where it was last found. The table may be moved."""
    table: str
    """The id of the table."""
    begins: int | None = None
    """The first version that is read, if the source specifies one. None: the whole table is read."""
    shape: TableShape | None = None
    """The shape of its columns at the last check, with which rows are read. None: not checked yet."""
    seen: DeltaCommit | None = None
    """The newest commit at a start, or the newest one that a checkpoint has read. None: not checked yet, or its file was missing."""
    lineage: str = ""
    """Distinguishes two tables with one id. It changes if an older copy of the table was restored and others have written to it."""


class KnownFiles(Part):
    """A folder of files."""

    format: Literal["files"] = "files"
    path: str
    """The URL of the folder, perhaps with a pattern."""
    passed: tuple[FilePin, ...] = ()
    """Files that are not read because reading begins after them."""


class KnownKafka(Part):
    """Topics of a Kafka cluster."""

    format: Literal["kafka"] = "kafka"
    cluster: str
    """The id of the cluster."""
    topics: dict[str, str]
    """The id of each topic, by name."""
    begins: dict[str, dict[int, int]] = Field(default_factory=dict)
    """The first offset that is read, by topic and partition. Other partitions are read from their first record."""


class KnownOther(Part):
    """A stream of another kind, identified by its format and its options."""

    format: Literal["other"] = "other"
    source: str
    """Spark's name of the format."""
    options: dict[str, str] | None = None
    """The SHA-256 of each option's value without secrets, by option name in lower case. None: not checked yet."""


KnownSource = KnownDelta | KnownFiles | KnownKafka | KnownOther
