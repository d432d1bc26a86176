"""Compares the columns of stages with those of tables. As in Spark and Delta, names that differ only in case are equal."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from spark_jobs.protocol.table_shape import GENERATED, PHYSICAL_NAME
from spark_jobs.publication.sql_names import quoted

_FILLED = {GENERATED, "delta.identity.start"}
"""The metadata that marks a column whose values Delta computes."""
_TEXT_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_LIMITED_TEXT = re.compile(r"(char|varchar)\((\d+)\)")
_PLAIN_NAME = re.compile(r"[^ ,;{}()\n\t=]+")
"""Matches column names that Parquet, and so Delta without column mapping, accepts."""

_DIGITS: dict[type[DataType], int] = {ByteType: 10, ShortType: 10, IntegerType: 10, LongType: 20}
"""The digits before the point in the decimal that Delta widens an integer to, from narrow to wide."""
_DECIMAL_DIGITS_MAX = 38
FieldPath = tuple[str, ...]
"""A column or a nested field as in ``ALTER TABLE``: an array contains ``element``, a map contains ``key`` and ``value``."""


@dataclass(frozen=True)
class Growth:
    """The changes that a table needs to store a frame's rows unchanged."""

    schema: StructType
    """The table's columns afterwards."""
    added: dict[FieldPath, DataType] = dataclasses.field(default_factory=dict)
    """Columns and fields of structs."""
    widened: dict[FieldPath, DataType] = dataclasses.field(default_factory=dict)
    """Columns and fields whose type becomes a wider one."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    @property
    def names(self) -> list[str]:
        """Returns the names of all of them, for errors."""
        return [".".join(path) for path in (*self.added, *self.widened)]


def lacking(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Returns the ``names`` that are not in the columns."""
    known = {column.lower() for column in columns}
    return [name for name in names if name.lower() not in known]


def same_names(some: Iterable[str], others: Iterable[str]) -> bool:
    """Returns True for the same columns in the same order."""
    return [name.lower() for name in some] == [name.lower() for name in others]


def fit(frame: DataFrame, schema: StructType) -> DataFrame:
    """Returns ``frame`` with a table's column names, order and types. Columns that the frame lacks stay absent.

    Delta's ``writeFiles`` neither casts nor checks types: an integer column staged as text makes a table unreadable.
    """
    absent = set(lacking(schema.names, frame.columns))
    return frame.to(StructType([StructField(f.name, f.dataType, True) for f in schema.fields if f.name not in absent]))


def as_held(frame: DataFrame, schema: StructType, partition_by: Iterable[str]) -> DataFrame:
    """Returns ``frame`` with texts as a table returns them: padded in a ``CHAR``, and null for an empty text in a partition.

    Otherwise a key that is compared before it is written would not match later.
    """
    partitions = {name.lower() for name in partition_by}
    held: dict[str, Column] = {}
    for field in schema.fields:
        if field.dataType != StringType():
            continue
        column = F.col(quoted(field.name))
        limit = text_limit(field)
        if limit and limit.padded:
            bare = F.rtrim(column)
            held[field.name.lower()] = F.when(F.length(bare) <= limit.length, F.rpad(bare, limit.length, " ")).otherwise(column)
        elif field.name.lower() in partitions:
            held[field.name.lower()] = F.nullif(column, F.lit(""))
    if not held.keys() & {name.lower() for name in frame.columns}:
        return frame
    return frame.select(*(held.get(name.lower(), F.col(quoted(name))).alias(name) for name in frame.columns))


class TextLimit(NamedTuple):
    """The maximum length of a column's texts. Shorter texts of a ``CHAR`` are padded."""

    length: int
    padded: bool


def returned_alone(metadata: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Returns the metadata of a table with only the columns that a stage returns, or that Delta fills.

    A column that the stage does not return any more has no value in its rows.
    """
    returned = {name.casefold() for name in [*columns, *metadata["partitionColumns"]]}
    schema = json.loads(metadata["schemaString"])
    fields = [field for field in schema["fields"] if field["name"].casefold() in returned or _FILLED & field["metadata"].keys()]
    return {**metadata, "schemaString": json.dumps(schema | {"fields": fields})}


def text_limit(field: StructField) -> TextLimit | None:
    """Returns the limit of a ``CHAR(n)`` or ``VARCHAR(n)``, which Spark's schemas store as a string with metadata."""
    found = _LIMITED_TEXT.fullmatch(field.metadata.get(_TEXT_TYPE, ""))
    return TextLimit(int(found.group(2)), found.group(1) == "char") if found else None


def unknown_fields(given: StructType, known: StructType) -> list[str]:
    """Returns the columns and fields of structs that ``known`` does not have. Spark would drop them silently."""
    return list(_unknown(given, known, ""))


def growth(known: StructType, given: StructType, *, widen: Callable[[FieldPath], bool]) -> Growth:
    """Returns the growth that ``known`` needs for rows of ``given``: columns, fields of structs at any depth, and wider types.

    Args:
        known: Columns of the table.
        given: Columns of the frame.
        widen: Returns True if the table allows the type of a field to be widened.
    """
    added: dict[FieldPath, DataType] = {}
    widened: dict[FieldPath, DataType] = {}

    def grown(path: FieldPath, old: DataType, new: DataType) -> DataType:
        match old, new:
            case StructType(), StructType():
                return grown_struct(path, old, new)
            case ArrayType(), ArrayType():
                return ArrayType(grown((*path, "element"), old.elementType, new.elementType), old.containsNull)
            case MapType(), MapType():
                key = grown((*path, "key"), old.keyType, new.keyType)
                return MapType(key, grown((*path, "value"), old.valueType, new.valueType), old.valueContainsNull)
        wider = _wider(old, new)
        if wider is None or not widen(path):
            return old
        widened[path] = wider
        return wider

    def grown_struct(path: FieldPath, old: StructType, new: StructType) -> StructType:
        others = {each.name.lower(): each for each in new.fields}
        fields = []
        for each in old.fields:
            other = others.pop(each.name.lower(), None)
            kind = each.dataType if other is None else grown((*path, each.name), each.dataType, other.dataType)
            fields.append(StructField(each.name, kind, each.nullable, each.metadata))
        for each in nullable(StructType(list(others.values()))).fields:
            added[(*path, each.name)] = each.dataType
            fields.append(each)
        return StructType(fields)

    return Growth(grown_struct((), known, given), added, widened)


def _wider(old: DataType, new: DataType) -> DataType | None:
    """Returns the narrowest type to which Delta can widen ``old`` and that holds all values of both, or None to keep ``old``."""
    match old, new:
        case (
            (FloatType(), DoubleType())
            | (ByteType() | ShortType() | IntegerType(), DoubleType())
            | (DateType(), TimestampNTZType())
        ):
            return new
    kinds = list(_DIGITS)
    if type(old) in kinds and type(new) in kinds:
        return new if kinds.index(type(new)) > kinds.index(type(old)) else None
    before, after = _digits(old), _digits(new)
    if before is None or after is None:
        return None
    whole, scale = max(before[0], after[0]), max(before[1], after[1])
    if (whole, scale) == before or whole + scale > _DECIMAL_DIGITS_MAX:
        return None
    return DecimalType(whole + scale, scale)


def _digits(kind: DataType) -> tuple[int, int] | None:
    """Returns the numbers of digits before and after the point, or None for other types than exact numbers."""
    if isinstance(kind, DecimalType):
        return kind.precision - kind.scale, kind.scale
    return (_DIGITS[type(kind)], 0) if type(kind) in _DIGITS else None


def mapped_names(schema: StructType) -> list[str]:
    """Returns the names, also of nested fields, that a table can only have with Delta's column mapping."""
    return [name for name in _names(schema) if not _PLAIN_NAME.fullmatch(name)]


def nullable(schema: StructType) -> StructType:
    """Returns the columns without their metadata, such as Spark's watermarks, and all nullable."""
    return _rebuilt(schema, lambda field: field.name)


def as_stored(schema: StructType) -> StructType:
    """Returns the columns with their names in a table's files, which differ with Delta's column mapping."""
    return _rebuilt(schema, lambda field: field.metadata.get(PHYSICAL_NAME, field.name))


def _rebuilt(schema: StructType, name: Callable[[StructField], str]) -> StructType:
    def rebuild(kind: DataType) -> DataType:
        match kind:
            case StructType():
                return _rebuilt(kind, name)
            case ArrayType():
                return ArrayType(rebuild(kind.elementType), True)
            case MapType():
                return MapType(rebuild(kind.keyType), rebuild(kind.valueType), True)
        return kind

    return StructType([StructField(name(field), rebuild(field.dataType), True) for field in schema.fields])


def _unknown(given: DataType, known: DataType, path: str) -> Iterator[str]:
    match given, known:
        case StructType(), StructType():
            fields = {field.name.lower(): field for field in known.fields}
            for field in given.fields:
                inner = f"{path}.{field.name}" if path else field.name
                other = fields.get(field.name.lower())
                if other is None:
                    yield inner
                else:
                    yield from _unknown(field.dataType, other.dataType, inner)
        case ArrayType(), ArrayType():
            yield from _unknown(given.elementType, known.elementType, path)
        case MapType(), MapType():
            yield from _unknown(given.keyType, known.keyType, path)
            yield from _unknown(given.valueType, known.valueType, path)


def _names(kind: DataType) -> Iterator[str]:
    match kind:
        case StructType():
            for field in kind.fields:
                yield field.name
                yield from _names(field.dataType)
        case ArrayType():
            yield from _names(kind.elementType)
        case MapType():
            yield from _names(kind.keyType)
            yield from _names(kind.valueType)
