"""Decides whether rows that were staged for an earlier shape of a table fit its present shape.

Staged files name their columns as Delta's column mapping does (by *physical name*). Columns may therefore be renamed, dropped, added and
moved in between. Checks that need the rows themselves, such as new constraints, are returned as conditions.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.table_shape import COLUMN_MAPPING, CONSTRAINT, GENERATED, PHYSICAL_NAME, TableShape
from spark_jobs.publication.sql_names import quoted

_TYPE_CHANGES = "delta.typeChanges"
_ICEBERG = "delta.enableIcebergCompat"
_ABOUT_ROWS = (CONSTRAINT, COLUMN_MAPPING, _ICEBERG)
_OTHER_FILES = "materializePartitionColumns"
"""The feature with which data files also contain the partition columns."""
_HARMLESS = frozenset({"delta.columnMapping.id", PHYSICAL_NAME, "delta.columnMapping.nested.ids", _TYPE_CHANGES})
_TEXT_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_Field = Mapping[str, Any]


def shape(schema_text: str, partition_by: Iterable[str], configuration: Mapping[str, str], features: Iterable[str]) -> TableShape:
    """Returns the shape of a table.

    Args:
        schema_text: Schema in Delta's JSON.
        partition_by: Partition columns.
        configuration: All properties of the table.
        features: Reader and writer features.
    """
    kept = {name: value for name, value in configuration.items() if name.startswith(_ABOUT_ROWS)}
    return TableShape(
        table_schema=schema_text, partition_by=tuple(partition_by), configuration=kept, features=tuple(sorted(set(features)))
    )


def misfits(staged: TableShape, table: TableShape) -> list[str]:
    """Returns the reasons why files that were staged for one shape cannot be part of a table of another shape.

    Each reason is the end of a sentence that begins with the table.
    """
    found = [
        *_struct_misfits(_fields(staged), _fields(table), "", mapped=_mode(table) != "none"),
        *_partition_misfits(staged, table),
    ]
    if _mode(table) != _mode(staged) and _mode(table) == "id":
        found.append("maps its columns by id")
    found += [
        f"is compatible with Iceberg ({name})"
        for name, value in sorted(table.configuration.items())
        if name.startswith(_ICEBERG) and value.lower() == "true" and staged.configuration.get(name, "").lower() != "true"
    ]
    if table.partition_by and _OTHER_FILES in set(table.features) - set(staged.features):
        found.append(f"has {_OTHER_FILES}")
    return found


def conditions(staged: TableShape, table: TableShape) -> dict[str, str]:
    """Returns the conditions that the table requires now and that were not checked when the rows were staged.

    Returns:
        SQL conditions on the table's columns, by name.
    """
    known = {value for name, value in staged.configuration.items() if name.startswith(CONSTRAINT)}
    found = {
        name.removeprefix(CONSTRAINT): value
        for name, value in sorted(table.configuration.items())
        if name.startswith(CONSTRAINT) and value not in known
    }
    before = {_physical(field): field for field in _fields(staged)}
    for field in _fields(table):
        old = before.get(_physical(field))
        if old is None:
            continue
        if old["nullable"] and not field["nullable"]:
            found[f"{field['name']} NOT NULL"] = f"{quoted(field['name'])} IS NOT NULL"
        limit = field["metadata"].get(_TEXT_TYPE, "")
        if limit.startswith("varchar") and limit != old["metadata"].get(_TEXT_TYPE):
            found[f"{field['name']} {limit}"] = f"coalesce(length({quoted(field['name'])}), 0) <= {limit[8:-1]}"
    return found


def unreadable(before: TableShape, now: TableShape) -> list[str]:
    """Returns the reasons why rows that a table got in one shape cannot be read in another.

    New, missing or renamed columns are no reason. Each reason is the end of a sentence that begins with the table.
    """
    found = [*_changed_types(_fields(before), _fields(now), ""), *_partition_misfits(before, now)]
    if _mode(now) != _mode(before) and _mode(now) == "id":
        found.append("maps its columns by id")
    return found


def misfits_of(staged: Sequence[TableShape], table: TableShape, merged_by: Iterable[str] | None) -> list[str]:
    """Returns the reasons why rows that were staged for some shapes cannot become rows of a table.

    Args:
        staged: Shapes of the staged rows, oldest first.
        table: Shape of the table.
        merged_by: Columns with which a MERGE finds and orders the rows of a key. None if the staged files become files of the table.
    """
    if merged_by is not None:
        partitions = [reason for each in staged for reason in _partition_misfits(each, table)]
        return list(dict.fromkeys([*renaming(staged, table, merged_by).misfits, *partitions]))
    return list(dict.fromkeys(reason for each in staged for reason in misfits(each, table)))


def conditions_of(staged: Iterable[TableShape], table: TableShape) -> dict[str, str]:
    """Returns the conditions for rows that were staged for some shapes, as :func:`conditions` does."""
    return {name: condition for each in staged for name, condition in conditions(each, table).items()}


@dataclass(frozen=True)
class Renaming:
    """The names of staged columns in the table that they are merged into.

    ``columns`` has the existing columns of the table by their staged name.
    """

    columns: Mapping[str, str]
    misfits: Sequence[str]
    """The reasons why the rows cannot be merged. Each is the end of a sentence that begins with the table."""


def renaming(staged: Sequence[TableShape], table: TableShape, needed: Iterable[str]) -> Renaming:
    """Returns the renaming for a merge of rows that were staged for some shapes into a table.

    Args:
        staged: Shapes of the staged rows, oldest first.
        table: Shape of the table.
        needed: Columns with which a MERGE finds the row of a key.
    """
    now = {_physical(field): field for field in _fields(table)}
    columns: dict[str, str] = {}
    found: list[str] = []
    for each in reversed(staged):
        for field in _fields(each):
            there = now.get(_physical(field))
            if there is None:
                continue
            columns.setdefault(field["name"].casefold(), there["name"])
            found += _renamed_inside(field["type"], there["type"], there["name"])
    for name in needed:
        known = any(name.casefold() == field["name"].casefold() for each in staged for field in _fields(each))
        if known and columns.get(name.casefold(), "").casefold() != name.casefold():
            found.append(f"no longer has the column {name}, which identifies or orders its rows")
    return Renaming(columns, list(dict.fromkeys(found)))


def _partition_misfits(staged: TableShape, table: TableShape) -> list[str]:
    """Compares the partition columns. Merged rows depend on them, too: an empty text becomes null in a partition column."""
    if _physical_partitions(staged) == _physical_partitions(table):
        return []
    return [f"is partitioned by {list(table.partition_by)}, and was partitioned by {list(staged.partition_by)}"]


def _struct_misfits(before: Sequence[_Field], after: Sequence[_Field], path: str, *, mapped: bool) -> Iterator[str]:
    old = {_physical(field): field for field in before}
    now = {_physical(field): field for field in after}
    if old and not old.keys() & now.keys():
        yield f"has none of the columns {', '.join(path + field['name'] for field in before)} any more"
        return
    for name, field in old.items():
        if name in now:
            yield from _field_misfits(field, now[name], path, mapped=mapped)
        elif not mapped:
            yield f"has no column {path}{field['name']} any more, and no column mapping"
    for name, field in now.items():
        if name not in old and not field["nullable"]:
            yield f"has a new column {path}{field['name']} that must not be null"
        elif name not in old and GENERATED in field["metadata"]:
            yield f"has a new generated column {path}{field['name']}"


def _field_misfits(old: _Field, new: _Field, path: str, *, mapped: bool) -> Iterator[str]:
    where = f"{path}{new['name']}"
    if path and old["nullable"] and not new["nullable"]:
        yield f"allows no null in {where} any more"
    for key, value in new["metadata"].items():
        if key.startswith("delta.") and key not in _HARMLESS and old["metadata"].get(key) != value:
            yield f"has {key} on column {where}"
    limit = new["metadata"].get(_TEXT_TYPE, "")
    if limit != old["metadata"].get(_TEXT_TYPE, "") and limit and (path or not limit.startswith("varchar")):
        yield f"has {limit} in {where}"
    yield from _type_misfits(old["type"], new["type"], where, new["metadata"].get(_TYPE_CHANGES, ()), "", mapped=mapped)


def _type_misfits(old: Any, new: Any, where: str, changes: Sequence[_Field], inside: str, *, mapped: bool) -> Iterator[str]:
    """Compares two types. ``inside`` is the path from the field into arrays and maps, as in Delta's record of widened types."""
    kinds = _kind(old), _kind(new)
    if kinds == ("struct", "struct"):
        yield from _struct_misfits(old["fields"], new["fields"], f"{where}.", mapped=mapped)
    elif kinds == ("array", "array"):
        if old["containsNull"] and not new["containsNull"]:
            yield f"allows no null in {where}.element any more"
        below = f"{inside}.element".lstrip(".")
        yield from _type_misfits(old["elementType"], new["elementType"], f"{where}.element", changes, below, mapped=mapped)
    elif kinds == ("map", "map"):
        if old["valueContainsNull"] and not new["valueContainsNull"]:
            yield f"allows no null in {where}.value any more"
        for part in ("key", "value"):
            below = f"{inside}.{part}".lstrip(".")
            yield from _type_misfits(old[f"{part}Type"], new[f"{part}Type"], f"{where}.{part}", changes, below, mapped=mapped)
    elif old != new and _widened(old, changes, inside) != new:
        yield f"has {kinds[1]} in {where}, and had {kinds[0]}"


def _changed_types(before: Sequence[_Field], after: Sequence[_Field], path: str) -> Iterator[str]:
    """Yields the columns whose type has changed in another way than by Delta's type widening.

    If a write replaces the table's columns and changes a type, Delta gives the column another name in data files.
    """
    known, now = {_physical(field) for field in before}, {_physical(field): field for field in after}
    anew = {field["name"].casefold(): field for physical, field in now.items() if physical not in known}
    for field in before:
        where = f"{path}{field['name']}"
        if (there := now.get(_physical(field))) is not None:
            changes = there["metadata"].get(_TYPE_CHANGES, ())
            yield from _changed_type(field["type"], there["type"], f"{path}{there['name']}", changes, "")
        elif (there := anew.get(field["name"].casefold())) and _bare(field["type"]) != _bare(there["type"]):
            yield f"has a new {where} of type {_kind(there['type'])}, and had one of type {_kind(field['type'])}"


def _changed_type(old: Any, new: Any, where: str, changes: Sequence[_Field], inside: str) -> Iterator[str]:
    kinds = _kind(old), _kind(new)
    if kinds == ("struct", "struct"):
        yield from _changed_types(old["fields"], new["fields"], f"{where}.")
    elif kinds == ("array", "array"):
        below = f"{inside}.element".lstrip(".")
        yield from _changed_type(old["elementType"], new["elementType"], f"{where}.element", changes, below)
    elif kinds == ("map", "map"):
        for part in ("key", "value"):
            below = f"{inside}.{part}".lstrip(".")
            yield from _changed_type(old[f"{part}Type"], new[f"{part}Type"], f"{where}.{part}", changes, below)
    elif old != new and _widened(old, changes, inside) != new:
        yield f"has {kinds[1]} in {where}, and had {kinds[0]}"


def _widened(kind: Any, changes: Sequence[_Field], inside: str) -> Any:
    """Returns the type after Delta's widenings of a type."""
    for change in changes:
        if change.get("fieldPath", "") == inside and change["fromType"] == kind:
            kind = change["toType"]
    return kind


def _renamed_inside(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yields the fields of structs with another name. A merge finds them by name."""
    kinds = _kind(old), _kind(new)
    if kinds == ("struct", "struct"):
        now = {_physical(field): field for field in new["fields"]}
        for field in old["fields"]:
            there = now.get(_physical(field))
            if there is not None and there["name"].casefold() != field["name"].casefold():
                yield f"has renamed the field {where}.{field['name']} to {there['name']}"
            if there is not None:
                yield from _renamed_inside(field["type"], there["type"], f"{where}.{there['name']}")
    elif kinds == ("array", "array"):
        yield from _renamed_inside(old["elementType"], new["elementType"], f"{where}.element")
    elif kinds == ("map", "map"):
        for part in ("key", "value"):
            yield from _renamed_inside(old[f"{part}Type"], new[f"{part}Type"], f"{where}.{part}")


def _kind(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, Mapping) else kind)


def _bare(kind: Any) -> Any:
    """Returns a type without the metadata of its fields."""
    if not isinstance(kind, Mapping):
        return kind
    if kind["type"] == "struct":
        return [(field["name"].casefold(), _bare(field["type"])) for field in kind["fields"]]
    return {name: _bare(part) for name, part in kind.items() if name in ("type", "elementType", "keyType", "valueType")}


def _fields(table: TableShape) -> list[_Field]:
    found: list[_Field] = json.loads(table.table_schema)["fields"]
    return found


def _physical(field: _Field) -> str:
    """Returns the name of a field in data files in lower case. Names that differ only in case are equal."""
    return str(field["metadata"].get(PHYSICAL_NAME, field["name"])).casefold()


def _physical_partitions(table: TableShape) -> list[str]:
    names = {field["name"].casefold(): _physical(field) for field in _fields(table)}
    return [names.get(name.casefold(), name) for name in table.partition_by]


def _mode(table: TableShape) -> str:
    return table.configuration.get(COLUMN_MAPPING, "none").lower()
