"""Reads the staged rows of a sink with keys without Spark, with the names and types of the table that they are merged into."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from spark_jobs.protocol.documents import SinkCut, SinkMode
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.publication.delete_conditions import DeleteCondition, delete_condition
from spark_jobs.publication.fitting import renaming
from spark_jobs.publication.merge_rows import RowOrder
from spark_jobs.publication.scratch_table import unused
from spark_jobs.storage.table_uris import spark_path

_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_Field = Mapping[str, Any]


@dataclass(frozen=True)
class MergeSource:
    """The reader of a publication's staged rows.

    Args:
        cut: Cut of the sink. Its ``staged_for`` has the shapes of all rows of the publication.
        rule: Merge rule of the cut.
        staged: Shape of the table with the staged files.
        table: Shape of the table to merge into.
    """

    cut: SinkCut
    rule: MergeCut
    staged: TableShape
    table: TableShape

    def obstacles(self) -> list[str]:
        """Returns the reasons why only Spark can read these rows correctly."""
        found = [
            f"column {name} was staged as {source['type']}"
            for name, sources in self._sources.items()
            for source in sources
            if source["type"] != self._fields[name]["type"]
        ]
        if self.rule.apply_as_deletes is not None and self._condition is None:
            found.append(f"apply_as_deletes={self.rule.apply_as_deletes!r} can only be evaluated by Spark")
        return found

    @property
    def written(self) -> tuple[str, ...]:
        """Returns the columns of the table that the rows have a value for."""
        return tuple(self._sources)

    @cached_property
    def order(self) -> RowOrder:
        """Returns the order of the rows of a key."""
        keys = tuple(map(self._named, self.rule.keys))
        sequence = self.batch if self.rule.sequence_by is None else self._named(self.rule.sequence_by)
        ties = sorted(name for name in self.written if name not in (*keys, sequence))
        return RowOrder(keys, sequence, self.deleted, tuple(ties))

    @property
    def is_compared(self) -> bool:
        """Returns True if a row of the table may come after a staged one."""
        return self.rule.sequence_by is not None

    @property
    def adds_only(self) -> bool:
        """Returns True if rows of the table stay unchanged."""
        return self.cut.mode is SinkMode.INSERT

    @cached_property
    def batch(self) -> str:
        """Returns the name of the column with the batch of a row."""
        return unused("__batch", self._taken)

    @cached_property
    def deleted(self) -> str:
        """Returns the name of the column that is true if a row deletes its key."""
        return unused("__deleted", self._taken)

    def read(self, lines: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Returns the rows of staged files, with :attr:`batch` and :attr:`deleted`.

        Raises:
            StorageError: A file cannot be read.
        """
        rows = [self._read(line) for line in lines]
        return pa.concat_tables(rows) if rows else self._schema.empty_table()

    def _read(self, line: Mapping[str, Any]) -> pa.Table:
        path = f"{spark_path(self.rule.staged_in)}/{unquote(line['add']['path'])}"
        try:
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                stored = file.read()
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f"Staged file {path} cannot be read: {error}",
                safe="Nothing was merged.",
                remedy="Repair the storage and repeat.",
                path=path,
            ) from error
        events = pa.table({name: self._column(stored, field) for name, field in self._staged_fields.items()})
        columns = [pc.coalesce(*(events[source["name"]] for source in sources)) for sources in self._sources.values()]
        batches = pa.repeat(pa.scalar(int(line["batch"]), pa.int64()), len(stored))
        deletes = self._condition.holds(events) if self._condition else pa.repeat(False, len(stored))
        return pa.Table.from_arrays([*columns, batches, deletes], schema=self._schema)

    def _column(self, stored: pa.Table, field: _Field) -> pa.ChunkedArray:
        """Returns a column of a staged file in its newest type; null if the file is older than the column."""
        kind = _arrow_type(field)
        name = field["metadata"].get(_PHYSICAL_NAME, field["name"])
        if name not in stored.schema.names:
            return pa.chunked_array([pa.nulls(len(stored), kind)])
        return stored[name].cast(kind)

    @cached_property
    def _condition(self) -> DeleteCondition | None:
        text = self.rule.apply_as_deletes
        if text is None:
            return None
        return delete_condition(text, {name: field["type"] for name, field in self._plain_fields.items()})

    @cached_property
    def _schema(self) -> pa.Schema:
        fields = [pa.field(name, _arrow_type(self._fields[name])) for name in self.written]
        return pa.schema([*fields, pa.field(self.batch, pa.int64()), pa.field(self.deleted, pa.bool_())])

    @cached_property
    def _sources(self) -> dict[str, list[_Field]]:
        """Returns the staged columns for each column of the table: several if it was renamed in between."""
        names = renaming(self.cut.staged_for or (self.table,), self.table, self.rule.compared).columns
        found: dict[str, list[_Field]] = {}
        for field in _fields(self.staged):
            target = names.get(field["name"].casefold())
            if target is not None:
                found.setdefault(target, []).append(field)
        return {name: found[name] for name in self._fields if name in found}

    @cached_property
    def _plain_fields(self) -> dict[str, _Field]:
        """Returns the staged columns with simple types."""
        return {field["name"]: field for field in _fields(self.staged) if isinstance(field["type"], str)}

    @cached_property
    def _staged_fields(self) -> dict[str, _Field]:
        """Returns the staged columns to read, for columns of the table or for the condition."""
        wanted = {field["name"] for sources in self._sources.values() for field in sources}
        if self._condition is not None:
            wanted |= self._condition.columns
        return {name: field for name, field in self._plain_fields.items() if name in wanted}

    @cached_property
    def _fields(self) -> dict[str, _Field]:
        return {field["name"]: field for field in _fields(self.table)}

    @property
    def _taken(self) -> Sequence[str]:
        return [field["name"] for shape in (self.staged, self.table) for field in _fields(shape)]

    def _named(self, name: str) -> str:
        """Returns a column in the table's spelling."""
        return next(column for column in self.written if column.casefold() == name.casefold())


def _fields(shape: TableShape) -> list[_Field]:
    found: list[_Field] = json.loads(shape.table_schema)["fields"]
    return found


def _arrow_type(field: _Field) -> pa.DataType:
    bare = {"name": "c", "type": field["type"], "nullable": True, "metadata": {}}
    return pa.schema(Schema.from_json(json.dumps({"type": "struct", "fields": [bare]})).to_arrow()).field(0).type
