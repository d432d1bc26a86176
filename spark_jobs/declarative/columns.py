"""The columns of a project's tables: those of a definition, and those of several flows."""

from collections.abc import Iterable
from functools import reduce
from typing import cast

from pyspark.pipelines.output import Table
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError


def as_defined(table: Table, name: str, frame: DataFrame, added: Iterable[str] = ()) -> DataFrame:
    """Returns the rows of a flow with the columns of the table's definition, if it has one.

    Args:
        table: The table.
        name: Name of its stage.
        frame: The rows.
        added: Columns of the rows that no definition has.

    Raises:
        InvalidPipelineError: The flow returns a column that the definition does not have.
    """
    if table.schema is None:
        return frame
    schema = table.schema if isinstance(table.schema, StructType) else cast(StructType, StructType.fromDDL(table.schema))
    schema = StructType([*schema.fields, *(frame.schema[column] for column in added)])
    known = {column.casefold() for column in schema.names}
    unknown = [column for column in frame.columns if column.casefold() not in known]
    if unknown:
        raise InvalidPipelineError(
            f"Stage '{name}' returns {', '.join(unknown)}, which the table's schema= does not have.",
            exists=f"The schema has {', '.join(schema.names)}.",
            safe="Nothing was staged.",
            remedy="Add the column to schema=, or leave it out of the flow.",
            stage=name,
        )
    return frame.to(schema)


def united(table: Table, frames: list[DataFrame]) -> DataFrame:
    """Returns the rows of all flows of a table. A column that a flow does not return is null.

    Raises:
        InvalidPipelineError: Two flows return a column with two types.
    """
    types: dict[str, str] = {}
    for column in (column for frame in frames for column in frame.schema):
        known = types.setdefault(column.name.casefold(), column.dataType.simpleString())
        if known != column.dataType.simpleString():
            raise InvalidPipelineError(
                f"Two flows into {table.name!r} give {column.name!r} two types: {known} and {column.dataType.simpleString()}.",
                safe="Nothing was staged.",
                remedy="Cast it in one of them, or give the table a schema=.",
                column=column.name,
            )
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
