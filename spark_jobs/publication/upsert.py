"""Upserts: which row of a key wins, and the MERGE that makes it so (design, section 6).

All rows of a key are put into one total order: by ``sequence_by``, then deletes after rows, then by the other columns. The
greatest one wins, within what is staged, against the table and against the tombstones. So the result is that of the set of
rows: neither their order, nor how they came in batches and checkpoints, nor a repetition changes it.

Without ``sequence_by`` the batch takes its place, and what is published is always older than what is not.

Needs Spark: loaded by name, by :mod:`spark_jobs.publication.publisher`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from spark_jobs.protocol.upsert_cut import UpsertCut
from spark_jobs.publication.scratch_table import unused
from spark_jobs.publication.sql_names import quoted

_STAGED, _TABLE = "staged", "published"


@dataclass(frozen=True)
class Upsert:
    """The rows of one publication and how they go into a table.

    Args:
        rule: As the manifest records it.
        events: All staged rows.
        batch: The column of ``events`` that holds the batch of a row; none of the stage's.
        replace: Whether the rows that the table has go.
    """

    rule: UpsertCut
    events: DataFrame
    batch: str
    replace: bool

    @property
    def columns(self) -> list[str]:
        """The staged columns, without those that only this module knows."""
        return [name for name in self.events.columns if name != self.batch]

    @property
    def _deleted(self) -> str:
        """The column that says whether a winning row deletes its key."""
        return self._unused("__deleted")

    def winners(self) -> DataFrame:
        """The winning row of each key, marked as deleted or not."""
        condition = self.rule.apply_as_deletes
        deleted = F.coalesce(F.expr(condition), F.lit(False)) if condition else F.lit(False)
        winner = self._unused("winner")
        marked = self.events.withColumn(self._deleted, deleted)
        whole = F.struct(*(_quoted(name) for name in [*self.columns, self._deleted]))
        order = F.struct(_quoted(self.rule.sequence_by or self.batch), F.col(self._deleted), *map(_quoted, self._ties()))
        keys = [_quoted(key) for key in self.rule.keys]
        return marked.groupBy(*keys).agg(F.max_by(whole, order).alias(winner)).select(f"{winner}.*")

    def bury(self, tombstones: DeltaTable) -> None:
        """Remembers the deleted keys, each with its highest ``sequence_by``; without any it leaves no version behind."""
        if not self.replace and self._dead().isEmpty():
            return
        sequence = self._sequence()
        columns = [*self.rule.keys, sequence]
        dead = self._deletes().select(*map(_quoted, columns))
        merge = tombstones.alias(_TABLE).merge(dead.alias(_STAGED), self._same_key())
        later = _after(F.struct(_of(_STAGED, sequence)), F.struct(_of(_TABLE, sequence)))
        values = _values(columns)
        merge = merge.whenMatchedUpdate(None if self.replace else later, set=values).whenNotMatchedInsert(values=values)
        (merge.whenNotMatchedBySourceDelete() if self.replace else merge).execute()

    def merge_into(self, table: DeltaTable, tombstones: DataFrame | None) -> None:
        """Makes the winners the rows of the table, where they beat those that it has and the tombstones."""
        rows = self.winners()
        if tombstones is not None:
            rows = self._risen(rows, tombstones)
        values = _values(self.columns)
        deleted, newer = _of(_STAGED, self._deleted), self._beats_table()
        merge = table.alias(_TABLE).merge(rows.alias(_STAGED), self._same_key())
        merge = merge.whenMatchedDelete(deleted & newer).whenMatchedUpdate(~deleted & newer, set=values)
        merge = merge.whenNotMatchedInsert(~deleted, values=values)
        (merge.whenNotMatchedBySourceDelete() if self.replace else merge).execute()

    def _deletes(self) -> DataFrame:
        """Per key the last delete: not only where it wins, because a row between two deletes may come later still."""
        sequence, keys = self._sequence(), [_quoted(key) for key in self.rule.keys]
        last = self._unused("last")
        latest = F.max(F.struct(_quoted(sequence))).alias(last)
        return self._dead().groupBy(*keys).agg(latest).select(*keys, F.col(last).getField(sequence).alias(sequence))

    def _dead(self) -> DataFrame:
        """The rows that delete their keys."""
        return self.events.where(F.coalesce(F.expr(self.rule.apply_as_deletes or "false"), F.lit(False)))

    def _risen(self, rows: DataFrame, tombstones: DataFrame) -> DataFrame:
        """Without the rows whose key was deleted at the same time or later."""
        sequence = self._sequence()
        buried = ~_after(F.struct(_of(_STAGED, sequence)), F.struct(_of(_TABLE, sequence)))
        matching = self._same_key() & ~_of(_STAGED, self._deleted) & buried
        return rows.alias(_STAGED).join(tombstones.alias(_TABLE), matching, "left_anti")

    def _beats_table(self) -> Column:
        if self.rule.sequence_by is None or self.replace:
            return F.lit(True)
        ties = self._ties()
        staged = F.struct(*(_of(_STAGED, name) for name in (self.rule.sequence_by, self._deleted, *ties)))
        published = F.struct(_of(_TABLE, self.rule.sequence_by), F.lit(False), *(_of(_TABLE, name) for name in ties))
        return _after(staged, published)

    def _same_key(self) -> Column:
        pairs = (_of(_TABLE, key).eqNullSafe(_of(_STAGED, key)) for key in self.rule.keys)
        return reduce(lambda left, right: left & right, pairs)

    def _ties(self) -> list[str]:
        """The columns that settle a tie, in an order of their own: that of a table may change."""
        settled = {name.casefold() for name in (*self.rule.keys, self.rule.sequence_by or self.batch)}
        fields = (field for field in self.events.schema.fields if field.name != self.batch)
        return sorted(f.name for f in fields if f.name.casefold() not in settled and has_order(f.dataType))

    def _unused(self, name: str) -> str:
        return unused(name, self.events.columns)

    def _sequence(self) -> str:
        if self.rule.sequence_by is None:
            raise ValueError("without sequence_by nothing can come late to a deleted key")
        return self.rule.sequence_by


def read_events(spark: SparkSession, directory: str) -> DataFrame:
    """The rows of a scratch table."""
    return spark.read.format("delta").load(directory)


def repeated_keys(frame: DataFrame, keys: Sequence[str]) -> int:
    """How many keys a frame has more than once."""
    return frame.groupBy(*(_quoted(key) for key in keys)).count().where("count > 1").count()


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def _of(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")


def _values(columns: Sequence[str]) -> dict[str, str | Column]:
    """What a MERGE writes: each column as it was staged."""
    return {quoted(name): _of(_STAGED, name) for name in columns}


def _after(later: Column, earlier: Column) -> Column:
    """Whether one struct comes after another; null comes before everything, so this is never null."""
    return later > earlier


def has_order(kind: DataType) -> bool:
    """Whether the values of a type can be compared, and so be a key or settle which row wins."""
    if isinstance(kind, MapType | VariantType):
        return False
    if isinstance(kind, StructType):
        return all(has_order(field.dataType) for field in kind.fields)
    return has_order(kind.elementType) if isinstance(kind, ArrayType) else True
