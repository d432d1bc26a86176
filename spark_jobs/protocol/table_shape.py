"""Parts of the manifest; see :mod:`spark_jobs.protocol.documents`."""

from collections.abc import Iterable

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId

CONSTRAINT = "delta.constraints."
"""The prefix of the properties that are CHECK constraints."""
COLUMN_MAPPING = "delta.columnMapping.mode"
"""The property for Delta's column mapping. Without it a column's name is its name in the files."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""The metadata of a column with its name in the files."""
GENERATED = "delta.generationExpression"
"""The metadata of a column that Delta computes."""


class TableShape(Part):
    """The part of a Delta table that decides whether staged rows still fit it later."""

    table_schema: str
    """The columns, in Delta's JSON."""
    partition_by: tuple[str, ...]
    configuration: dict[str, str]
    """The properties that limit rows and files: CHECK constraints, column mapping and Iceberg compatibility."""
    features: tuple[str, ...]
    """The reader and writer features, sorted."""

    @property
    def has_constraints(self) -> bool:
        """Returns True if the table has a CHECK constraint."""
        return any(name.startswith(CONSTRAINT) for name in self.configuration)

    def without_constraints(self) -> "TableShape":
        """Returns the shape that a table without CHECK constraints would have."""
        kept = {name: value for name, value in self.configuration.items() if not name.startswith(CONSTRAINT)}
        return self.model_copy(update={"configuration": kept})


class StagedSince(Part):
    """The shape of a table from some batch of a stage on."""

    first: BatchId
    shape: TableShape


class StagedFor(Part):
    """The public table that a stage stages its rows for."""

    table_id: str
    since: tuple[StagedSince, ...]
    """The shapes of the table, oldest first. The last one is that of the newest attempt."""

    def shapes(self, after: BatchId, last: BatchId) -> tuple[TableShape, ...]:
        """Returns the shapes of the table for the batches after ``after`` up to ``last``, oldest first."""
        ends = [*(BatchId(each.first - 1) for each in self.since[1:]), last]
        return distinct(each.shape for each, end in zip(self.since, ends, strict=True) if each.first <= last and end > after)


def distinct(shapes: Iterable[TableShape]) -> tuple[TableShape, ...]:
    """Returns each shape once, in order."""
    found: list[TableShape] = []
    for each in shapes:
        if each not in found:
            found.append(each)
    return tuple(found)
