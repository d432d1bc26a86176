"""A Delta log of one version that names staged files where they lie, so that Spark can read them as a table."""

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
    """The log, in a directory of its own that is removed when the context closes: frames must have been read by then.

    It has an id of its own, because Delta keeps what it knows of a table by id.

    Args:
        uri: The directory of the staged files.
        metadata: Of the table that they were staged for.
        protocol: The same table's.
        lines: ``{"add": …}`` for each staged file, with whatever else is known of it.
        label: What of a line each of its file's rows gets, as the number in column :func:`column_of`.
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
    """As :func:`scratch_table`, for a frame that a user keeps: the directory is removed when this process ends."""
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
    """The column that a scratch table has for a label: one that the table with ``metadata`` does not have."""
    return unused(f"__{label}", (field["name"] for field in json.loads(metadata["schemaString"])["fields"]))


def unused(name: str, columns: Iterable[str]) -> str:
    """``name``, or another one like it where a column has it: rows of change data capture often have a ``__deleted`` of their own."""
    taken = {column.casefold() for column in columns}
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def _labelled(metadata: dict[str, Any], column: str) -> dict[str, Any]:
    """Delta reads a partition column from the log and not from the files: so each file's rows get its label."""
    schema = json.loads(metadata["schemaString"])
    mapped = {}
    if metadata["configuration"].get(_MAPPING_MODE, "none") != "none":
        mapped = {_MAPPING_ID: 2**31 - 1, "delta.columnMapping.physicalName": column}
    schema["fields"].append({"name": column, "type": "long", "nullable": True, "metadata": mapped})
    return {**metadata, "schemaString": json.dumps(schema), "partitionColumns": [*metadata["partitionColumns"], column]}
