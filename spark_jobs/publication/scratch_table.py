"""A Delta log of one version that names staged files in their place, so that Spark can read them as a table."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from spark_jobs.protocol.codec import canonical

_LOG = "_delta_log/00000000000000000000.json"
_MAPPING_MODE = "delta.columnMapping.mode"
_MAPPING_ID = "delta.columnMapping.id"


@contextmanager
def scratch_table(
    uri: str,
    metadata: Mapping[str, Any],
    protocol: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    *,
    label: str | None = None,
) -> Iterator[Path]:
    """Creates the log in its own directory, and removes it when the context closes. Frames must be read before that.

    The log has its own id, because Delta caches its knowledge of a table by id.

    Args:
        uri: Directory of the staged files.
        metadata: Metadata of the table that they were staged for.
        protocol: Protocol of the same table.
        lines: ``{"add": …}`` for each staged file, perhaps with other fields.
        label: Field of a line whose number each row of its file gets, in column :func:`column_of`.
    """
    directory = _new_directory()
    try:
        _write_log(directory, uri, metadata, protocol, lines, label)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def lasting_scratch_table(
    uri: str, metadata: Mapping[str, Any], protocol: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]
) -> Path:
    """Creates the log of :func:`scratch_table` for a frame that a user keeps. The directory is removed when this process ends."""
    directory = _new_directory()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    _write_log(directory, uri, metadata, protocol, lines, None)
    return directory


def _new_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="staged-rows-"))


def _write_log(
    directory: Path,
    uri: str,
    metadata: Mapping[str, Any],
    protocol: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    label: str | None,
) -> None:
    described = {**metadata, "id": str(uuid4())}
    column = "" if label is None else column_of(label, metadata)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 0, "operation": "READ STAGED", "operationParameters": {}}},
        {"protocol": protocol},
        {"metaData": _labelled(described, column) if column else described},
    ]
    for line in lines:
        add = {**line["add"], "path": f"{uri}/{line['add']['path']}"}
        if label is not None:
            add["partitionValues"] = {**add["partitionValues"], column: str(line[label])}
        actions.append({"add": add})
    log = directory / _LOG
    log.parent.mkdir()
    log.write_bytes(b"\n".join(canonical(action) for action in actions) + b"\n")


def column_of(label: str, metadata: Mapping[str, Any]) -> str:
    """Returns the name of a scratch table's column for a label. The table with ``metadata`` does not have it."""
    return unused(f"__{label}", (field["name"] for field in json.loads(metadata["schemaString"])["fields"]))


def unused(name: str, columns: Iterable[str]) -> str:
    """Returns ``name``, or a similar name if a column has it. Rows of change data capture often have a ``__deleted`` of their own."""
    taken = {column.casefold() for column in columns}
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def _labelled(metadata: dict[str, Any], column: str) -> dict[str, Any]:
    """Adds a label column as a partition column: Delta takes its value from the log, so each row of a file gets the file's label."""
    schema = json.loads(metadata["schemaString"])
    mapped = {}
    if metadata["configuration"].get(_MAPPING_MODE, "none") != "none":
        mapped = {_MAPPING_ID: 2**31 - 1, "delta.columnMapping.physicalName": column}
    schema["fields"].append({"name": column, "type": "long", "nullable": True, "metadata": mapped})
    return {**metadata, "schemaString": json.dumps(schema), "partitionColumns": [*metadata["partitionColumns"], column]}
