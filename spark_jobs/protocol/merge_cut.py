"""A part of the manifest; see :mod:`spark_jobs.protocol.documents`."""

from pydantic import Field

from spark_jobs.protocol.codec import Part


class MergeCut(Part):
    """The rules for merging a sink's staged rows into its table. The mode is in the sink cut."""

    keys: tuple[str, ...]
    sequence_by: str | None
    apply_as_deletes: str | None
    """A SQL condition on the staged rows."""
    staged_in: str
    """URI of the Delta-shaped directory with the staged files and their log."""
    tombstones: str | None
    """URI of the Delta table of deleted keys. None if no row can come late to a deleted key."""
    tombstones_version: int = 0
    """The newest version of that table when the checkpoint was taken."""
    version_columns: tuple[str, ...] = ()
    """With :attr:`SinkMode.HISTORY`: the columns with beginning and end of a row's validity, and with the mark of the current one."""
    spark_above_bytes: int = 0
    """Spark merges if more bytes of files must be read; otherwise delta-rs does."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Spark settings that decide the meaning of SQL expressions, with their values when the rows were staged."""

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that find and order a row."""
        return (*self.keys, *(() if self.sequence_by is None else (self.sequence_by,)), *self.version_columns)
