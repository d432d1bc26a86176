"""Reads the staged rows of a sink with keys without Spark, with the names and types of the table that they are merged into."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from spark_jobs.background import run_all
from spark_jobs.protocol.documents import SinkCut, SinkMode
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.table_shape import PHYSICAL_NAME, TableShape
from spark_jobs.publication.delete_conditions import DeleteCondition, delete_condition
from spark_jobs.publication.fitting import renaming
from spark_jobs.publication.labels import unused
from spark_jobs.publication.merge_rows import RowOrder
from spark_jobs.storage.files import opened
from spark_jobs.storage.table_uris import is_in_store, spark_path, table_files

Field = Mapping[str, Any]
"""A column, as Delta writes it."""
T = TypeVar("T")


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
        rows = in_turn_or_at_once(self.rule.staged_in, [partial(self._read, line) for line in lines])
        return pa.concat_tables(rows) if rows else self._schema.empty_table()

    def _read(self, line: Mapping[str, Any]) -> pa.Table:
        events = read_file(self.rule.staged_in, unquote(line["add"]["path"]), self._staged_fields.values())
        columns = [pc.coalesce(*(events[source["name"]] for source in sources)) for sources in self._sources.values()]
        batches = pa.repeat(pa.scalar(int(line["batch"]), pa.int64()), len(events))
        deletes = self._condition.holds(events) if self._condition else pa.repeat(False, len(events))
        return pa.Table.from_arrays([*columns, batches, deletes], schema=self._schema)

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
    def _sources(self) -> dict[str, list[Field]]:
        """Returns the staged columns for each column of the table: several if it was renamed in between."""
        names = renaming(self.cut.staged_for or (self.table,), self.table, self.rule.compared).columns
        found: dict[str, list[Field]] = {}
        for field in fields_of(self.staged):
            target = names.get(field["name"].casefold())
            if target is not None:
                found.setdefault(target, []).append(field)
        return {name: found[name] for name in self._fields if name in found}

    @cached_property
    def _plain_fields(self) -> dict[str, Field]:
        """Returns the staged columns with simple types."""
        return {field["name"]: field for field in fields_of(self.staged) if isinstance(field["type"], str)}

    @cached_property
    def _staged_fields(self) -> dict[str, Field]:
        """Returns the staged columns to read, for columns of the table or for the condition."""
        wanted = {field["name"] for sources in self._sources.values() for field in sources}
        if self._condition is not None:
            wanted |= self._condition.columns
        return {name: field for name, field in self._plain_fields.items() if name in wanted}

    @cached_property
    def _fields(self) -> dict[str, Field]:
        return {field["name"]: field for field in fields_of(self.table)}

    @property
    def _taken(self) -> Sequence[str]:
        return [field["name"] for shape in (self.staged, self.table) for field in fields_of(shape)]

    def _named(self, name: str) -> str:
        """Returns a column in the table's spelling."""
        return next(column for column in self.written if column.casefold() == name.casefold())


def fields_of(shape: TableShape) -> list[Field]:
    """Returns the columns of a table, as Delta writes them."""
    found: list[Field] = json.loads(shape.table_schema)["fields"]
    return found


def read_file(uri: str, name: str, fields: Collection[Field]) -> pa.Table:
    """Returns columns of a Parquet file of a table, with their names and types there.

    delta-rs reads tables, too, but holds Python's lock while it waits for the storage.

    Args:
        uri: The table.
        name: The file's path in it.
        fields: The columns. One that the file does not have, because it is older, is null.

    Raises:
        StorageError: The file cannot be read.
    """
    stored_as = {field["name"]: field["metadata"].get(PHYSICAL_NAME, field["name"]) for field in fields}
    kinds = {field["name"]: _arrow_type(field) for field in fields}
    path = f"{spark_path(uri)}/{name}"
    try:
        with opened(table_files(uri), name) as found, pq.ParquetFile(found, coerce_int96_timestamp_unit="us") as file:
            there = set(file.schema_arrow.names)
            stored = file.read(columns=[each for each in stored_as.values() if each in there])
            rows = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"Staged file {path} cannot be read: {error}",
            safe="Nothing was merged.",
            remedy="Repair the storage and repeat.",
            path=path,
        ) from error
    return pa.table(
        {
            name: stored[physical].cast(kinds[name]) if physical in there else pa.nulls(rows, kinds[name])
            for name, physical in stored_as.items()
        }
    )


def in_turn_or_at_once(uri: str, reads: Sequence[Callable[[], T]]) -> list[T]:
    """Reads files of a table: those in a store at once, because each of them takes a round trip."""
    return run_all(reads) if is_in_store(uri) else [read() for read in reads]


def _arrow_type(field: Field) -> pa.DataType:
    bare = {"name": "c", "type": field["type"], "nullable": True, "metadata": {}}
    return pa.schema(Schema.from_json(json.dumps({"type": "struct", "fields": [bare]})).to_arrow()).field(0).type
