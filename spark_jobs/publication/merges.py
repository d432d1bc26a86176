"""Merges staged rows into a table by keys with Spark's MERGE.

The staged rows of a key have one total order: by ``sequence_by``, then deletes after rows, then by the other columns. The result depends
only on the set of rows. Neither their order, nor their distribution over batches and checkpoints, nor a repetition changes it. Without
``sequence_by`` the batch takes its place, and public rows are always older than staged ones.

The three modes differ in the rows that they take from this order: the greatest row (:class:`Upsert`), the least row of a key that the
table does not have (:class:`Insert`), or all rows, each as a version (:class:`History`).

Needs Spark. :mod:`spark_jobs.publication.publisher` loads it by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType
from pyspark.sql.window import WindowSpec

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication.labels import unused
from spark_jobs.publication.sql_names import quoted

_STAGED, _TABLE = "staged", "published"


@dataclass(frozen=True)
class KeyedMerge(ABC):
    """The merge of one publication's rows into a table.

    Args:
        rule: Merge rule of the manifest.
        events: All staged rows.
        batch: Column of ``events`` with the batch of a row. It is not a column of the stage.
        replace: True if the present rows of the table are removed.
        schema: Columns of the table.
        names: Column of the table by staged column (in lower case). Other columns are not in the table any more.
    """

    rule: MergeCut
    events: DataFrame
    batch: str
    replace: bool
    schema: StructType
    names: Mapping[str, str]

    def bury(self, tombstones: DeltaTable) -> None:
        """Stores the deletes among the staged rows. Makes no version without deletes. Idempotent."""
        if not self.replace and self._dead().isEmpty():
            return
        sequence = self._sequence()
        columns = [*self.rule.keys, sequence]
        merge = tombstones.alias(_TABLE).merge(self._deletes().alias(_STAGED), self._same(self._remembered_by))
        later = _after(F.struct(_of(_STAGED, sequence)), F.struct(_of(_TABLE, sequence)))
        values = _values(columns)
        merge = merge.whenMatchedUpdate(None if self.replace else later, set=values).whenNotMatchedInsert(values=values)
        (merge.whenNotMatchedBySourceDelete() if self.replace else merge).execute()

    def merge_into(self, table: DeltaTable, tombstones: DataFrame | None) -> None:
        """Merges the staged rows into the table, after their deletes were stored."""
        values, deleted = _values(self._written), _of(_STAGED, self._deleted)
        merge = table.alias(_TABLE).merge(self._changes(table.toDF(), tombstones).alias(_STAGED), self._same(self._found_by))
        wins = F.lit(True) if self.replace else self._wins()
        if wins is not None:
            merge = merge.whenMatchedDelete(deleted & wins).whenMatchedUpdate(~deleted & wins, set=values)
        merge = merge.whenNotMatchedInsert(~deleted, values=values)
        (merge.whenNotMatchedBySourceDelete() if self.replace else merge).execute()

    def merged(self, table: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        """Returns the rows that the table will have after :meth:`merge_into`. Writes nothing.

        Args:
            table: Its present rows.
            tombstones: The deletes of earlier merges. Those among the staged rows may be missing.
        """
        stored, staged = self._unused("__is_stored"), self._unused("__is_staged")
        before = table.where(F.lit(not self.replace)).withColumn(stored, F.lit(True))
        changes = self._changes(table, None if self.replace else tombstones).withColumn(staged, F.lit(True))
        both = before.alias(_TABLE).join(changes.alias(_STAGED), self._same(self._found_by), "full_outer")
        wins = self._wins()
        changed = _quoted(staged).isNotNull() & (_quoted(stored).isNull() | (F.lit(False) if wins is None else wins))
        written = {name.casefold() for name in self._written}
        values = {
            name: F.when(changed, _of(_STAGED, name)).otherwise(_of(_TABLE, name))
            if name.casefold() in written
            else _of(_TABLE, name)
            for name in self.schema.names
        }
        rows = both.where(F.when(changed, ~_of(_STAGED, self._deleted)).otherwise(_quoted(stored).isNotNull()))
        return rows.select(*(value.alias(name) for name, value in values.items()))

    @abstractmethod
    def _changes(self, table: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        """Returns the rows that the MERGE writes or deletes, at most one per row of the table, marked as deleting or not."""

    @abstractmethod
    def _wins(self) -> Column | None:
        """Returns the condition for replacing the matched row of the table by a changed row, or None if it is never replaced."""

    @property
    def _found_by(self) -> tuple[str, ...]:
        """Returns the columns with which the MERGE finds the row of the table."""
        return self.rule.keys

    @property
    def _remembered_by(self) -> tuple[str, ...]:
        """Returns the columns that identify a stored delete. Of two deletes with the same values the later one is stored."""
        return self.rule.keys

    @cached_property
    def _columns(self) -> list[str]:
        """Returns the columns of the table that the staged rows have a value for."""
        return [name for name in self.schema.names if name.casefold() in self._sources]

    @property
    def _written(self) -> list[str]:
        """Returns the columns that the MERGE writes."""
        return self._columns

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        """Returns the staged columns for each column of the table (in lower case): several if it was renamed in between."""
        found: dict[str, list[str]] = {}
        for name in self.events.columns:
            if name != self.batch and (target := self.names.get(name.casefold())):
                found.setdefault(target.casefold(), []).append(name)
        return found

    @cached_property
    def _deleted(self) -> str:
        """Returns the name of the column that is true if a row deletes its key."""
        return self._unused("__deleted")

    @cached_property
    def _marked(self) -> DataFrame:
        """Returns all staged rows with the table's names and types, marked as deleting or not."""
        condition = self.rule.apply_as_deletes
        deleted = F.coalesce(F.expr(condition), F.lit(False)) if condition else F.lit(False)
        values = [F.coalesce(*map(_quoted, self._sources[name.casefold()])).alias(name) for name in self._columns]
        marked = self.events.select(*values, _quoted(self.batch), deleted.alias(self._deleted))
        kinds = {
            field.name: nullable_type(self.schema[field.name].dataType) for field in marked.schema if field.name in self._columns
        }
        return marked.to(StructType([StructField(f.name, kinds.get(f.name, f.dataType)) for f in marked.schema]))

    @property
    def _order(self) -> Column:
        """Returns the position of a staged row among those of its key."""
        return F.struct(_quoted(self.rule.sequence_by or self.batch), _quoted(self._deleted), *map(_quoted, self._ties()))

    def _one_of_each_key(self, choose: Callable[[Column, Column], Column]) -> DataFrame:
        """Returns one staged row per key, chosen by the order of its rows."""
        chosen = self._unused("chosen")
        whole = F.struct(*map(_quoted, [*self._columns, self._deleted]))
        grouped = self._marked.groupBy(*self._keys())
        return grouped.agg(choose(whole, self._order).alias(chosen)).select(f"{chosen}.*")

    def _deletes(self) -> DataFrame:
        """Returns the deletes to store, including those that do not win: a row between two deletes may still come."""
        sequence, last = self._sequence(), self._unused("last")
        latest = F.max(F.struct(_quoted(sequence).alias(sequence))).alias(last)
        grouped = self._dead().groupBy(*map(_quoted, self._remembered_by)).agg(latest)
        return grouped.select(*self._keys(), F.col(last).getField(sequence).alias(sequence))

    def _dead(self) -> DataFrame:
        """Returns the staged rows that delete their keys."""
        return self._marked.where(_quoted(self._deleted))

    def _same(self, columns: Iterable[str]) -> Column:
        pairs = (_of(_TABLE, name).eqNullSafe(_of(_STAGED, name)) for name in columns)
        return reduce(lambda left, right: left & right, pairs)

    def _keys(self) -> list[Column]:
        return [_quoted(key) for key in self.rule.keys]

    def _ties(self) -> list[str]:
        """Returns the columns that break a tie, sorted by name, because the order of a table's columns may change."""
        settled = {name.casefold() for name in (*self.rule.keys, self.rule.sequence_by or self.batch)}
        fields = (self.schema[name] for name in self._columns)
        return sorted(f.name for f in fields if f.name.casefold() not in settled and has_order(f.dataType))

    def _unused(self, name: str) -> str:
        return unused(name, [*self.events.columns, *self.schema.names])

    def _sequence(self) -> str:
        if self.rule.sequence_by is None:
            raise ValueError("without sequence_by nothing can come late to a deleted key")
        return self.rule.sequence_by


class Upsert(KeyedMerge):
    """Keeps the greatest row of each key among staged rows, table and stored deletes."""

    def _changes(self, table: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        rows = self._one_of_each_key(F.max_by)
        return rows if tombstones is None else self._risen(rows, tombstones)

    def _risen(self, rows: DataFrame, tombstones: DataFrame) -> DataFrame:
        """Returns the rows whose keys were not deleted at the same time or later."""
        sequence = self._sequence()
        buried = ~_after(F.struct(_of(_STAGED, sequence)), F.struct(_of(_TABLE, sequence)))
        matching = self._same(self.rule.keys) & ~_of(_STAGED, self._deleted) & buried
        return rows.alias(_STAGED).join(tombstones.alias(_TABLE), matching, "left_anti")

    def _wins(self) -> Column:
        if self.rule.sequence_by is None:
            return F.lit(True)
        ties = self._ties()
        staged = F.struct(*(_of(_STAGED, name) for name in (self.rule.sequence_by, self._deleted, *ties)))
        published = F.struct(_of(_TABLE, self.rule.sequence_by), F.lit(False), *(_of(_TABLE, name) for name in ties))
        return _after(staged, published)


class Insert(KeyedMerge):
    """Adds the least row of each key that the table does not have."""

    def _changes(self, table: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        return self._one_of_each_key(F.min_by)

    def _wins(self) -> None:
        return None


class History(KeyedMerge):
    """Keeps all rows of each key, one per ``sequence_by``. Each is valid until the next one, or until the next delete.

    The table contains the earlier changes: each version begins with a change, and a version whose end is not the beginning of another ends
    with a delete. The stored deletes include those that end no version. So the versions of a changed key are computed again from all its
    changes.

    The MERGE itself reads the table: in its transaction both reads see one version.
    """

    @property
    def _found_by(self) -> tuple[str, ...]:
        return (*self.rule.keys, self._start)

    @property
    def _remembered_by(self) -> tuple[str, ...]:
        return (*self.rule.keys, self._sequence())

    @property
    def _written(self) -> list[str]:
        return [*self._columns, *self.rule.version_columns]

    @property
    def _start(self) -> str:
        return self.rule.version_columns[0]

    @cached_property
    def _stored(self) -> str:
        """Returns the name of the column that is true if the table has exactly this row."""
        return self._unused("__stored")

    @cached_property
    def _before(self) -> tuple[str, str]:
        """Returns the names of the columns with the stored end of a version and its stored mark as current."""
        return self._unused("__was_end"), self._unused("__was_current")

    def _changes(self, table: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        staged = self._marked.select(
            *map(_quoted, self._columns), _quoted(self._sequence()).alias(self._start), _quoted(self._deleted)
        )
        touched = staged.select(*self._keys()).distinct()
        changes = staged.withColumn(self._stored, F.lit(False))
        if not self.replace:
            changes = changes.unionByName(self._published(table, touched), allowMissingColumns=True)
        if tombstones is not None:
            buried = tombstones.select(
                *self._keys(),
                _quoted(self._sequence()).alias(self._start),
                F.lit(True).alias(self._deleted),
                F.lit(False).alias(self._stored),
            )
            changes = changes.unionByName(self._of_keys(buried, touched), allowMissingColumns=True)
        return self._unlike_the_table(self._one_at_a_time(changes))

    def _published(self, table: DataFrame, touched: DataFrame) -> DataFrame:
        """Returns the changes of some keys that the table contains: its versions, and the deletes that ended a version."""
        start, end, current = self.rule.version_columns
        was_end, was_current = self._before
        stored = [
            *map(_quoted, [*self._columns, start]),
            _quoted(end).alias(was_end),
            _quoted(current).alias(was_current),
        ]
        versions = self._of_keys(table.select(*stored), touched)
        ends, deleted = self._unused("__ends"), _quoted(self._deleted)
        following = F.lead(_quoted(start)).over(self._turns)
        marked = versions.withColumn(ends, _quoted(was_end).isNotNull() & ~_quoted(was_end).eqNullSafe(following))
        both, one = F.array(F.lit(False), F.lit(True)), F.array(F.lit(False))
        events = marked.withColumn(self._deleted, F.explode(F.when(_quoted(ends), both).otherwise(one))).drop(_quoted(ends))
        at = F.when(deleted, _quoted(was_end)).otherwise(_quoted(start))
        return events.withColumns({start: at, self._stored: ~deleted})

    def _one_at_a_time(self, changes: DataFrame) -> DataFrame:
        """Returns the greatest change of each key at each time. Its column :attr:`_occupied` is true if the table has a row there."""
        chosen = self._unused("chosen")
        whole = F.struct(*map(_quoted, changes.columns))
        order = F.struct(*map(_quoted, [self._deleted, *self._ties(), self._stored]))
        grouped = changes.groupBy(*self._keys(), _quoted(self._start))
        occupied = F.bool_or(_quoted(self._stored)).alias(self._occupied)
        return grouped.agg(F.max_by(whole, order).alias(chosen), occupied).select(f"{chosen}.*", _quoted(self._occupied))

    def _unlike_the_table(self, changes: DataFrame) -> DataFrame:
        """Returns versions that are missing or different in the table, and, marked as deleted, its rows that are not versions any more."""
        _, end, current = self.rule.version_columns
        ended = changes.withColumn(end, F.lead(_quoted(self._start)).over(self._turns))
        versions = ended.withColumn(current, _quoted(end).isNull())
        as_it_is = _quoted(self._stored)
        if not self.replace:
            was_end, was_current = self._before
            as_it_is &= _quoted(was_end).eqNullSafe(_quoted(end)) & _quoted(was_current).eqNullSafe(_quoted(current))
        differs = F.when(_quoted(self._deleted), _quoted(self._occupied)).otherwise(~as_it_is)
        return versions.where(differs).select(*map(_quoted, [*self._written, self._deleted]))

    def _wins(self) -> Column:
        return F.lit(True)

    @cached_property
    def _occupied(self) -> str:
        return self._unused("__occupied")

    @property
    def _turns(self) -> WindowSpec:
        """Returns the window over the changes of a key in order; null comes first."""
        return Window.partitionBy(*self._keys()).orderBy(_quoted(self._start).asc_nulls_first())

    def _of_keys(self, rows: DataFrame, keys: DataFrame) -> DataFrame:
        return rows.alias(_TABLE).join(keys.alias(_STAGED), self._same(self.rule.keys), "left_semi")


def keyed_merge(
    mode: SinkMode, rule: MergeCut, events: DataFrame, batch: str, replace: bool, schema: StructType, names: Mapping[str, str]
) -> KeyedMerge:
    """Returns the merge of a mode with keys; the other arguments are those of :class:`KeyedMerge`."""
    kinds: dict[SinkMode, type[Upsert] | type[Insert] | type[History]] = {
        SinkMode.UPSERT: Upsert,
        SinkMode.INSERT: Insert,
        SinkMode.HISTORY: History,
    }
    return kinds[mode](rule, events, batch, replace, schema, names)


def repeated_keys(frame: DataFrame, keys: Sequence[str]) -> int:
    """Returns the number of keys that a frame has more than once."""
    return frame.groupBy(*(_quoted(key) for key in keys)).count().where("count > 1").count()


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def _of(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")


def _values(columns: Sequence[str]) -> dict[str, str | Column]:
    """Returns the values that a MERGE writes: each column as staged."""
    return {quoted(name): _of(_STAGED, name) for name in columns}


def _after(later: Column, earlier: Column) -> Column:
    """Returns the condition that one struct comes after another. Null comes first, so the condition is never null."""
    return later > earlier


def nullable_type(kind: DataType) -> DataType:
    """Returns the type with nullable fields and elements."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, nullable_type(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(nullable_type(kind.elementType))
        case MapType():
            return MapType(nullable_type(kind.keyType), nullable_type(kind.valueType))
    return kind


def has_order(kind: DataType) -> bool:
    """Returns True if the values of a type can be compared. Only then can they be a key or break a tie."""
    if isinstance(kind, MapType | VariantType):
        return False
    if isinstance(kind, StructType):
        return all(has_order(field.dataType) for field in kind.fields)
    return has_order(kind.elementType) if isinstance(kind, ArrayType) else True
