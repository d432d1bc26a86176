"""Parts of the manifest; see :mod:`spark_jobs.protocol.documents`."""

from collections.abc import Iterable

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId


class TableShape(Part):
    """The part of a Delta table that decides whether rows that were staged for it fit it later."""

    table_schema: str
    """Its columns, as Delta writes them."""
    partition_by: tuple[str, ...]
    configuration: dict[str, str]
    """Those of its properties that say which rows and which files belong: CHECK constraints, column mapping, Iceberg compatibility."""
    features: tuple[str, ...]
    """Its reader and writer features, sorted."""


class StagedSince(Part):
    """What a table was from some batch of a stage on."""

    first: BatchId
    shape: TableShape


class StagedFor(Part):
    """The public table that a stage stages its rows for."""

    table_id: str
    since: tuple[StagedSince, ...]
    """What it was, oldest first; the last one is what it was when the newest attempt looked."""

    def shapes(self, after: BatchId, last: BatchId) -> tuple[TableShape, ...]:
        """Returns what the table was for the batches after ``after`` up to ``last``, oldest first."""
        ends = [*(BatchId(each.first - 1) for each in self.since[1:]), last]
        return distinct(each.shape for each, end in zip(self.since, ends, strict=True) if each.first <= last and end > after)


def distinct(shapes: Iterable[TableShape]) -> tuple[TableShape, ...]:
    """Returns each shape once."""
    found: list[TableShape] = []
    for each in shapes:
        if each not in found:
            found.append(each)
    return tuple(found)
