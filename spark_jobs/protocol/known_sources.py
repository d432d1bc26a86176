"""A part of rounds and manifests: what each stream of a source is, and where reading it has begun.

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
    """Of the beginning of its file."""


class KnownDelta(Part):
    """A Delta table."""

    format: Literal["delta"] = "delta"
    path: str
    """Where it was found last. The table may be moved."""
    table: str
    """Its id."""
    begins: int | None = None
    """The first version that is read, where the source says from where; None: the whole table is."""
    shape: TableShape | None = None
    """What its columns were when it was looked at last: those that rows are read with. None: nobody has looked."""
    seen: DeltaCommit | None = None
    """The newest commit that was there at a start, or that a checkpoint has read. None: nobody has looked, or its file was not there."""
    lineage: str = ""
    """Tells two tables with the same id apart. It changes when an older copy of the table was put back and others have written to it."""


class KnownFiles(Part):
    """A folder of files."""

    format: Literal["files"] = "files"
    path: str
    """Its URL, perhaps with a pattern."""
    passed: tuple[FilePin, ...] = ()
    """Files that are not read, because reading begins after them."""


class KnownKafka(Part):
    """Topics of a Kafka cluster."""

    format: Literal["kafka"] = "kafka"
    cluster: str
    """The cluster's id."""
    topics: dict[str, str]
    """The id of each topic, by name."""
    begins: dict[str, dict[int, int]] = Field(default_factory=dict)
    """By topic and partition the first offset that is read. A partition that is not named is read from its first record."""


class KnownOther(Part):
    """A stream of another kind: its format and its options tell what it is."""

    format: Literal["other"] = "other"
    source: str
    """Spark's name of the format."""
    options: dict[str, str] | None = None
    """By name of the option, in lower case, the SHA-256 of its value without secrets. None: nobody has looked."""


KnownSource = KnownDelta | KnownFiles | KnownKafka | KnownOther
