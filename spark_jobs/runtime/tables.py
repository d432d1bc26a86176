"""The Delta tables that stages stage into: made where they are missing, checked where they exist, before anything is staged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.session import DeltaJvm
from spark_jobs.runtime.staging import fit

_GENERATED = "delta.generationExpression"


@dataclass(frozen=True)
class StagingTable:
    """A Delta table in whose directory files are staged."""

    path: Path
    schema: StructType
    metadata: dict[str, Any]
    protocol: dict[str, Any]

    @property
    def uri(self) -> str:
        """The percent-encoded ``file:`` URI that Delta's actions are resolved against."""
        return self.path.as_uri()


def prepare_table(session: SparkSession, path: Path, frame: DataFrame, partition_by: Sequence[str], name: str) -> StagingTable:
    """The table at ``path``, made with the frame's columns if it is missing; idempotent.

    Args:
        session: The stage's session.
        path: The table's directory.
        frame: What will be staged there.
        partition_by: The declared partition columns; empty where an existing table's own are fine.
        name: The sink's or stage's name, for errors.

    Raises:
        UnsupportedTableError: The frame's rows do not fit the table, or it is partitioned otherwise. Nothing was written.
    """
    version, metadata, protocol = DeltaJvm(session).snapshot(str(path))
    if version < 0:
        _check_partition_columns(frame, partition_by, name)
        with step(Step.TABLE_CREATE):
            builder = DeltaTable.createIfNotExists(session).location(str(path)).addColumns(_plain(frame.schema))
            (builder.partitionedBy(*partition_by) if partition_by else builder).execute()
        version, metadata, protocol = DeltaJvm(session).snapshot(str(path))
    table = StagingTable(path, StructType.fromJson(json.loads(metadata["schemaString"])), metadata, protocol)
    _check_fits(table, frame, partition_by, name)
    return table


def _check_partition_columns(frame: DataFrame, partition_by: Sequence[str], name: str) -> None:
    missing = [column for column in partition_by if column.lower() not in {c.lower() for c in frame.columns}]
    if missing:
        raise UnsupportedTableError(
            f"Sink '{name}' is partitioned by {', '.join(missing)}, which its stage does not return.",
            exists=f"The stage returns {', '.join(frame.columns)}.",
            safe="No table was made.",
            remedy="Correct partition_by, or return the column.",
            sink=name,
            missing=missing,
            columns=frame.columns,
        )


def _check_fits(table: StagingTable, frame: DataFrame, partition_by: Sequence[str], name: str) -> None:
    facts = {"sink": name, "table": table.uri}
    safe = "Nothing was written."
    existing = list(table.metadata["partitionColumns"])
    if partition_by and [c.lower() for c in partition_by] != [c.lower() for c in existing]:
        raise UnsupportedTableError(
            f"Sink '{name}' is declared with partition_by={list(partition_by)}, and table {table.path} is partitioned by {existing}.",
            safe=safe,
            remedy="Declare the table's own columns, or none.",
            expected=list(partition_by),
            found=existing,
            **facts,
        )
    known = {field.name.lower(): field for field in table.schema.fields}
    extra = [column for column in frame.columns if column.lower() not in known]
    given = {column.lower() for column in frame.columns}
    required = [
        f.name for f in table.schema.fields if not f.nullable and _GENERATED not in f.metadata and f.name.lower() not in given
    ]
    if extra or required:
        problem = (
            f"returns {', '.join(extra)}, which the table does not have" if extra else f"lacks {', '.join(required)} (NOT NULL)"
        )
        raise UnsupportedTableError(
            f"The stage of sink '{name}' {problem}.",
            exists=f"Table {table.path} has {', '.join(table.schema.names)}.",
            safe=safe,
            remedy="Change the stage's select, or ALTER TABLE.",
            extra=extra,
            missing=required,
            **facts,
        )
    try:
        fit(frame, table.schema).schema  # noqa: B018 - Spark analyses the casts here
    except AnalysisException as error:
        raise UnsupportedTableError(
            f"The rows of sink '{name}' do not fit the columns of table {table.path}: {str(error).splitlines()[0]}",
            safe=safe,
            remedy="Cast the columns in the stage.",
            **facts,
        ) from error


def _plain(schema: StructType) -> StructType:
    """The columns without Spark's streaming metadata, all nullable."""
    return StructType([StructField(field.name, _nullable(field.dataType), True) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _plain(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind
