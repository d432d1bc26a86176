"""Labels of staged files: a number for all rows of a file, in a column that the table does not have."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from spark_jobs.protocol.table_shape import COLUMN_MAPPING, PHYSICAL_NAME

_MAPPING_ID = "delta.columnMapping.id"


def labelled(
    metadata: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], label: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the metadata and the ``add`` actions of a frame. They have a label as a partition column, whose value is in the action.

    The metadata has an id of its own, because Delta caches its knowledge of a table by id.
    """
    described = {**metadata, "id": str(uuid4())}
    if label is None:
        return described, [dict(line["add"]) for line in lines]
    column = column_of(label, metadata)
    adds = [{**line["add"], "partitionValues": {**line["add"]["partitionValues"], column: str(line[label])}} for line in lines]
    return _with_column(described, column), adds


def column_of(label: str, metadata: Mapping[str, Any]) -> str:
    """Returns the name of a frame's column for a label. The table with ``metadata`` does not have it."""
    return unused(f"__{label}", (field["name"] for field in json.loads(metadata["schemaString"])["fields"]))


def unused(name: str, columns: Iterable[str]) -> str:
    """Returns ``name``, or a similar name if a column has it. Rows of change data capture often have a ``__deleted`` of their own."""
    taken = {column.casefold() for column in columns}
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def _with_column(metadata: dict[str, Any], column: str) -> dict[str, Any]:
    schema = json.loads(metadata["schemaString"])
    mapped = {}
    if metadata["configuration"].get(COLUMN_MAPPING, "none") != "none":
        mapped = {_MAPPING_ID: 2**31 - 1, PHYSICAL_NAME: column}
    schema["fields"].append({"name": column, "type": "long", "nullable": True, "metadata": mapped})
    return {**metadata, "schemaString": json.dumps(schema), "partitionColumns": [*metadata["partitionColumns"], column]}
