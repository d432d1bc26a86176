"""Merges staged rows into a table by keys without a JVM, as one ``MERGE`` of delta-rs.

Order and result of the rows are those of :mod:`spark_jobs.publication.merges`. Arrow orders the staged rows here and leaves one row per
key. The ``MERGE`` compares it with the row of the table.

Spark's order differs in one point from those of Arrow and delta-rs: in Spark all NaN are equal, and so are 0.0 and -0.0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.publication.delta_rs import STAGED, TABLE, MergeStatement
from spark_jobs.publication.labels import unused


@dataclass(frozen=True)
class RowOrder:
    """The total order of the rows of a key.

    Args:
        keys: Columns that identify a row.
        sequence: Column that orders the rows of a key: ``sequence_by``, or the batch of a row.
        deleted: Column that is true if a row deletes its key.
        ties: Columns that break a tie, in this order.
    """

    keys: tuple[str, ...]
    sequence: str
    deleted: str
    ties: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns that order the rows of a key, the most significant first."""
        return (self.sequence, self.deleted, *self.ties)

    def greatest(self, rows: pa.Table) -> pa.Table:
        """Returns the last row of each key."""
        return self._one_of_each_key(rows, "max")

    def least(self, rows: pa.Table) -> pa.Table:
        """Returns the first row of each key."""
        return self._one_of_each_key(rows, "min")

    def risen(self, rows: pa.Table, tombstones: pa.Table) -> pa.Table:
        """Returns the rows whose keys were not deleted at the same time or later.

        Args:
            rows: At most one row per key.
            tombstones: Deleted keys, each with the highest :attr:`sequence` of its deletes.
        """
        number = unused("number", rows.schema.names)
        wanted = [*self.keys, self.sequence]
        places = pa.array(range(len(rows)), pa.int64())
        candidates = rows.select([*wanted, self.deleted]).append_column(number, places)
        deletes = tombstones.select(wanted).filter(
            reduce(pc.and_, (pc.is_in(_one_zero(tombstones[key]), _one_zero(rows[key]).combine_chunks()) for key in self.keys))
        )
        deletes = deletes.append_column(self.deleted, pa.repeat(True, len(deletes)))
        deletes = deletes.append_column(number, pa.nulls(len(deletes), pa.int64())).cast(candidates.schema)
        last = RowOrder(self.keys, self.sequence, self.deleted, ()).greatest(pa.concat_tables([candidates, deletes]))
        return rows.filter(pc.or_(rows[self.deleted], pc.is_in(places, last[number].drop_null().combine_chunks())))

    def _one_of_each_key(self, rows: pa.Table, which: str) -> pa.Table:
        columns = dict(_sortable(rows, self.columns))
        order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
        rows = rows.take(order)
        keys = pa.table({str(number): _one_zero(rows[key]) for number, key in enumerate(self.keys)})
        placed = keys.append_column("place", pa.array(range(len(rows)), pa.int64()))
        chosen = placed.group_by(keys.schema.names, use_threads=False).aggregate([("place", which)])
        return rows.take(chosen[f"place_{which}"])


def _sortable(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yields columns that Arrow sorts as Spark sorts the columns ``names``."""
    for number, name in enumerate(names):
        column = _one_zero(rows[name])
        yield f"{number} is there", column.is_valid()  # null comes first
        if pa.types.is_floating(column.type):  # Arrow sorts NaN next to null
            nan = pc.is_nan(column)
            yield f"{number} is NaN", nan
            column = pc.if_else(nan, pa.scalar(0, column.type), column)
        yield str(number), column


def _one_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column in which all NaN have the same bytes, and all zeros, too."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0, column.type)))


def upsert(rows: pa.Table, order: RowOrder, written: Sequence[str], *, compared: bool) -> MergeStatement:
    """Returns the ``MERGE`` that leaves the greater one of the table's row and the staged row of each key.

    Args:
        rows: At most one row per key, with the table's names and types.
        order: Order of the rows of a key.
        written: Columns to write.
        compared: True if the row of the table may be the greater one. False: all staged rows are newer.
    """
    source = _Source(rows)
    same, deleted = source.same(order.keys), _of(STAGED, order.deleted)
    wins = source.after(order) if compared else "true"
    return MergeStatement(
        same=same,
        delete_if=f"{deleted} AND {wins}",
        update_if=f"NOT {deleted} AND {wins}",
        insert_if=f"NOT {deleted}",
        values=_values(written),
        source=source.rows,
    )


def insert(rows: pa.Table, order: RowOrder, written: Sequence[str]) -> MergeStatement:
    """Returns the ``MERGE`` that adds the rows whose keys the table does not have; arguments as for :func:`upsert`."""
    source = _Source(rows)
    same = source.same(order.keys)
    return MergeStatement(
        same=same, delete_if=None, update_if=None, insert_if="true", values=_values(written), source=source.rows
    )


class _Source:
    """The source of a ``MERGE``: rows, and helper columns for values that delta-rs compares differently from Spark."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def same(self, keys: Sequence[str]) -> str:
        """Returns the condition that a row of the source and a row of the table have the same keys."""
        return " AND ".join(map(self._same, keys))

    def _same(self, key: str) -> str:
        """Returns the condition for one key. Null equals null. delta-rs would compare all pairs of rows for ``IS NOT DISTINCT FROM``."""
        column, theirs = self.rows[key], _of(TABLE, key)
        if not column.null_count and not pa.types.is_floating(column.type):
            return f"{theirs} = {_of(STAGED, key)}"  # without an expression, delta-rs skips files without such a key
        sql, value = _filler(column.type)
        filled = self._add(pc.coalesce(_one_zero(column), pa.scalar(value, column.type)))
        absent = self._add(column.is_null())
        return f"coalesce({_one_zero_sql(theirs, column.type)}, {sql}) = {filled} AND ({theirs} IS NULL) = {absent}"

    def after(self, order: RowOrder) -> str:
        """Returns the condition that a row of the source comes after a row of the table, which is not a delete."""
        return f"CASE {' '.join(map(self._decides, order.columns, repeat(order.deleted)))} ELSE false END"

    def _decides(self, name: str, deleted: str) -> str:
        """Returns the branch for pairs of rows whose first difference is in this column. Null comes first."""
        ours, theirs = _of(STAGED, name), _of(TABLE, name)
        if name == deleted:
            return f"WHEN {ours} THEN true"
        kind = self.rows.schema.field(name).type
        if pa.types.is_floating(kind):
            ours, theirs = self._add(_one_zero(self.rows[name])), _one_zero_sql(theirs, kind)
        return f"WHEN {ours} IS DISTINCT FROM {theirs} THEN {ours} IS NOT NULL AND ({theirs} IS NULL OR {ours} > {theirs})"

    def _add(self, column: pa.ChunkedArray) -> str:
        name = unused("helper", self.rows.schema.names)
        self.rows = self.rows.append_column(name, column)
        return _of(STAGED, name)


def _one_zero_sql(value: str, kind: pa.DataType) -> str:
    """Returns an expression for a value of the table in which all NaN have the same bytes, and all zeros, too."""
    if not pa.types.is_floating(kind):
        return value
    name = "REAL" if kind == pa.float32() else "DOUBLE"
    zero, nan = f"CAST(0 AS {name})", f"CAST('NaN' AS {name})"
    return f"CASE WHEN isnan({value}) THEN {nan} WHEN {value} = {zero} OR {value} = -{zero} THEN {zero} ELSE {value} END"


def _filler(kind: pa.DataType) -> tuple[str, Any]:
    """Returns any value of a type, in SQL and in Python."""
    if pa.types.is_timestamp(kind):
        zone = f'Some("{kind.tz}")' if kind.tz else "None"
        return f"arrow_cast('1970-01-01T00:00:00', 'Timestamp(Microsecond, {zone})')", datetime(
            1970, 1, 1, tzinfo=UTC if kind.tz else None
        )
    if pa.types.is_date(kind):
        return "CAST('1970-01-01' AS DATE)", date(1970, 1, 1)
    if pa.types.is_binary(kind):
        return "arrow_cast('', 'Binary')", b""
    if pa.types.is_string(kind):
        return "''", ""
    if pa.types.is_boolean(kind):
        return "false", False
    return "0", Decimal(0) if pa.types.is_decimal(kind) else 0


def _values(columns: Sequence[str]) -> dict[str, str]:
    return {_name(column): _of(STAGED, column) for column in columns}


def _of(side: str, column: str) -> str:
    return f"{side}.{_name(column)}"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
