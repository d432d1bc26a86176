"""Parts of the documents of a round: the end of each stream of a bounded source; see :mod:`spark_jobs.protocol.documents`."""

from typing import Literal

from spark_jobs.protocol.codec import Part


class DeltaPin(Part):
    """Every row up to and including ``version`` belongs to the round."""

    format: Literal["delta"] = "delta"
    path: str
    table: str
    version: int
    rows: int | None = None
    """Rows of the table at that version if its log has the number. It is used for the progress."""
    commit: str | None = None
    """Hash of the beginning of the version's commit file, for a static input. None if the file was missing."""


class FilePin(Part):
    """One file of a file source. ``timestamp_ms`` is its modification time, as Spark records it."""

    path: str
    timestamp_ms: int
    size_bytes: int


class FilesPin(Part):
    """Exactly these files belong to the round."""

    format: Literal["files"] = "files"
    path: str
    files: tuple[FilePin, ...]


class KafkaPin(Part):
    """Every record before these offsets belongs to the round. Partitions that are not named have no records in it."""

    format: Literal["kafka"] = "kafka"
    topics: dict[str, dict[int, int]]
    """The end by topic and partition: the offset of the next record at that time."""


class ClockPin(Part):
    """The moment of the round, for a stage that reads no stream."""

    format: Literal["clock"] = "clock"
    moment_ms: int
    """Milliseconds since 1970."""


Pin = DeltaPin | FilesPin | KafkaPin | ClockPin
