"""A part of the manifest; see :mod:`spark_jobs.protocol.documents`."""

from pydantic import Field

from spark_jobs.protocol.codec import Part


class MergeCut(Part):
    """How the staged rows of a sink with keys go into its table. The mode is in the sink cut."""

    keys: tuple[str, ...]
    sequence_by: str | None
    apply_as_deletes: str | None
    """A SQL condition on the staged rows."""
    staged_in: str
    """URI of the Delta-shaped directory of the staged files, and of the log that says what they are."""
    tombstones: str | None
    """URI of the Delta table that remembers deleted keys; None where nothing can come late to one."""
    tombstones_version: int = 0
    """The newest version of that table when the checkpoint was taken."""
    version_columns: tuple[str, ...] = ()
    """With :attr:`SinkMode.HISTORY`: the columns for from when and to when a row is valid, and whether it is the current one."""
    spark_above_bytes: int = 0
    """Spark merges where more bytes of files have to be read; delta-rs where not more."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Spark settings that decide what SQL expressions mean, as they were where the rows were staged."""

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns by which a row is found and ordered."""
        return (*self.keys, *(() if self.sequence_by is None else (self.sequence_by,)), *self.version_columns)
