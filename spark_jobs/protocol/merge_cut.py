"""A part of the manifest; see :mod:`spark_jobs.protocol.documents`."""

from pydantic import Field

from spark_jobs.protocol.codec import Part


class MergeCut(Part):
    """How the staged rows of a sink with :attr:`SinkMode.UPSERT` go into its table."""

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
    settings: dict[str, str] = Field(default_factory=dict)
    """Spark settings that decide what SQL expressions mean, as they were where the rows were staged."""

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns by which a row is found and ordered."""
        return self.keys if self.sequence_by is None else (*self.keys, self.sequence_by)
