"""Creates missing tables: decides the first commit, and creates it.

The first commit of a plain table is written here, in milliseconds. For other tables Delta's own builder creates a table in a temporary
directory, and its first commit is used. So a table is the same either way, and in a directory as in a store. A table with a name is created
by its catalog, unless a savepoint has brought rows into its directory: Delta's catalog creates tables only in empty directories.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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
    StructType,
    TimestampType,
)

from spark_jobs.api.sink import TableDesign
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.delta_log import DELTA_LOG, commit_name
from spark_jobs.protocol.errors import AlreadyExistsError, UnsupportedTableError, first_line
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import ENGINE
from spark_jobs.publication.sql_names import delta_at
from spark_jobs.runtime.spark.session import SPARK_CATALOG, has_settings
from spark_jobs.runtime.tables.schemas import mapped_names, nullable
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.open import PROBE
from spark_jobs.storage.table_uris import spark_path, table_files

_COMMIT = f"{DELTA_LOG}/{commit_name(0)}"
_CHECKSUM = f"{DELTA_LOG}/{0:020}.crc"
_OLDEST_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""The protocol of a table that needs no table feature."""
_DEFAULTS = "spark.databricks.delta.properties.defaults."
"""Prefix of settings that give every new table a property or a newer protocol."""
_PLAIN = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampType,
)
"""Types that need no table feature, besides text without a collation."""


@dataclass(frozen=True)
class _NewTable:
    """The files of a log that has one version, without rows."""

    commit: bytes
    checksum: bytes | None
    """Delta's version checksum: without it Spark runs a job to read the commit. Other readers ignore it."""


def create_table(session: SparkSession, place: TablePlace, columns: StructType, design: TableDesign, name: str) -> None:
    """Creates a missing table, durably. A table that another start has created stays.

    Args:
        session: A session with Delta.
        place: Place of the table.
        columns: Columns of the table.
        design: Partitioning, clustering, comment and properties.
        name: Name of the sink or stage, for errors.

    Raises:
        UnsupportedTableError: Delta cannot create such a table, or the place has other files.
    """
    columns = nullable(columns)
    with step(Step.TABLE_CREATE):
        has_rows = _has_staged_rows(place, name)
        if place.name is not None and not has_rows:
            return _build(session, place.name, spark_path(place.uri), columns, design, name)
        plain = is_plain(session, columns, design)
        made = _plain_table(columns, design) if plain else _table_of_delta(session, columns, design, name)
        files = table_files(place.uri)
        with suppress(AlreadyExistsError):
            files.create(_COMMIT, made.commit)
            if made.checksum is not None:
                files.create(_CHECKSUM, made.checksum)


def is_unnamed(session: SparkSession, place: TablePlace) -> bool:
    """Returns True if a table is addressed by a name that the catalog does not have."""
    return place.name is not None and place.location is not None and not session.catalog.tableExists(place.name)


def give_name(session: SparkSession, place: TablePlace, name: str) -> None:
    """Enters an existing table into Spark's own catalog if it is addressed by a name that the catalog does not have.

    Raises:
        UnsupportedTableError: The catalog refuses it.
    """
    if place.name is None or not is_unnamed(session, place):
        return
    try:
        session.catalog.createTable(place.name, path=place.location, source="delta")
    except AnalysisException as error:
        if is_unnamed(session, place):  # otherwise another start has named it
            raise UnsupportedTableError(
                f"The table of sink '{name}' cannot be named {place.name} in Spark's catalog: {first_line(error)}",
                safe="The table exists without rows.",
                remedy="Correct what the catalog refuses. A metastore of its own also needs the store's client.",
                sink=name,
                table=place.name,
            ) from error


def is_plain(session: SparkSession, columns: StructType, design: TableDesign) -> bool:
    """Returns True if Delta would create the table with its oldest protocol and without a property."""
    if design.properties or design.cluster_by or not columns.fields or mapped_names(columns):
        return False
    if not all(_is_plain_type(field.dataType) for field in columns.fields) or not _are_distinct(columns.names):
        return False
    kinds = {field.name: field.dataType for field in columns.fields}
    partitions = design.partition_by
    if not (
        _are_distinct(partitions) and len(partitions) < len(kinds) and all(_is_plain_key(kinds.get(each)) for each in partitions)
    ):
        return False
    return not has_settings(session, _DEFAULTS)


def _is_plain_type(kind: DataType) -> bool:
    match kind:
        case StructType():
            return (
                bool(kind.fields) and _are_distinct(kind.names) and all(_is_plain_type(field.dataType) for field in kind.fields)
            )
        case ArrayType():
            return _is_plain_type(kind.elementType)
        case MapType():
            return _is_plain_type(kind.keyType) and _is_plain_type(kind.valueType)
    return type(kind) in _PLAIN or kind == StringType()  # text with a collation is another type


def _is_plain_key(kind: DataType | None) -> bool:
    """Returns True if a table can be partitioned by a column of this type, which exists under the given name."""
    return kind is not None and not isinstance(kind, StructType | ArrayType | MapType)


def _are_distinct(names: Sequence[str]) -> bool:
    return len({name.casefold() for name in names}) == len(names)


def _plain_table(columns: StructType, design: TableDesign) -> _NewTable:
    now_ms, transaction = int(time.time() * 1000), str(uuid4())
    described = {} if design.comment is None else {"description": design.comment}
    info = {
        "timestamp": now_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {
            "isManaged": "false",
            "partitionBy": json.dumps(list(design.partition_by)),
            "properties": "{}",
            **described,
        },
        "isBlindAppend": True,
        "engineInfo": ENGINE,
        "txnId": transaction,
    }
    metadata = {
        "id": str(uuid4()),
        **described,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(columns.jsonValue(), ensure_ascii=False, separators=(",", ":")),
        "partitionColumns": list(design.partition_by),
        "configuration": {},
        "createdTime": now_ms,
    }
    actions: list[dict[str, Any]] = [{"commitInfo": info}, {"metaData": metadata}, {"protocol": _OLDEST_PROTOCOL}]
    checksum = {
        "txnId": transaction,
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata,
        "protocol": _OLDEST_PROTOCOL,
        "allFiles": [],
    }
    return _NewTable(b"".join(canonical(action) + b"\n" for action in actions), canonical(checksum))


def _table_of_delta(session: SparkSession, columns: StructType, design: TableDesign, name: str) -> _NewTable:
    with TemporaryDirectory(prefix="new-table-") as directory:
        _build(session, None, directory, columns, design, name)
        checksum = Path(directory) / _CHECKSUM
        return _NewTable((Path(directory) / _COMMIT).read_bytes(), checksum.read_bytes() if checksum.exists() else None)


def _build(session: SparkSession, named: str | None, path: str, columns: StructType, design: TableDesign, name: str) -> None:
    builder = DeltaTable.createIfNotExists(session).addColumns(columns)
    builder = builder.tableName(named.removeprefix(f"{SPARK_CATALOG}.") if named else delta_at(path))  # it takes no catalog
    if not named:  # by itself it takes no backtick
        builder = builder.location(path)
    if design.partition_by:
        builder = builder.partitionedBy(*design.partition_by)
    if design.cluster_by:
        builder = builder.clusterBy(*design.cluster_by)
    if design.comment is not None:
        builder = builder.comment(design.comment)
    for key, value in design.properties.items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except AnalysisException as error:
        raise UnsupportedTableError(
            f"The table of sink '{name}' cannot be created: {first_line(error)}",
            remedy="Correct the sink's cluster_by or table_properties, or the stage's columns.",
            sink=name,
        ) from error


def _has_staged_rows(place: TablePlace, name: str) -> bool:
    """Returns True if a savepoint has brought staged rows. Refuses a place with other files, except for the log of another start."""
    prefix, found = place.staged_prefix, list(_visible_files(place))
    foreign = [path for path in found if not (prefix and path.rpartition("/")[2].startswith(prefix))]
    if foreign:
        raise UnsupportedTableError(
            f"The table of sink '{name}' cannot be created at {place.uri}: there are other files, such as {foreign[0]}.",
            remedy="Give the sink an empty or a new place.",
            sink=name,
            table=place.uri,
            found=foreign[:20],
        )
    return bool(found)


def _visible_files(place: TablePlace) -> Iterator[str]:
    files = table_files(place.uri)
    for path in files.paths():
        passed_over = any(part.startswith(".") or part == DELTA_LOG or PROBE.fullmatch(part) for part in path.split("/"))
        if not passed_over and files.size_bytes(path) is not None:  # no directory that is empty
            yield path
