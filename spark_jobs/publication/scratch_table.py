"""A Delta log of one version that names staged files where they lie, so that Spark can read them as a table."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from spark_jobs.protocol.codec import canonical

BATCH = "__batch"
"""The column that holds the batch of a row where it is asked for."""
_LOG = "_delta_log/00000000000000000000.json"


def scratch_table(
    uri: str,
    metadata: Mapping[str, Any],
    protocol: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    *,
    with_batch: bool = False,
) -> Path:
    """Makes the log, in a directory of its own that is removed when this process ends.

    It has an id of its own, because Delta keeps what it knows of a table by id.

    Args:
        uri: The directory of the staged files.
        metadata: Of the table that they were staged for.
        protocol: The same table's.
        lines: ``{"add": …, "batch": …}`` for each staged file.
        with_batch: Whether the table gets a column :data:`BATCH`.
    """
    directory = Path(tempfile.mkdtemp(prefix="staged-rows-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    described = {**metadata, "id": str(uuid4())}
    if with_batch:
        described = _with_batch(described)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 0, "operation": "READ STAGED", "operationParameters": {}}},
        {"protocol": protocol},
        {"metaData": described},
    ]
    for line in lines:
        add = {**line["add"], "path": f"{uri}/{line['add']['path']}"}
        if with_batch:
            add["partitionValues"] = {**add["partitionValues"], BATCH: str(line["batch"])}
        actions.append({"add": add})
    log = directory / _LOG
    log.parent.mkdir()
    log.write_bytes(b"\n".join(canonical(action) for action in actions) + b"\n")
    return directory


def _with_batch(metadata: dict[str, Any]) -> dict[str, Any]:
    """Delta reads a partition column from the log and not from the files: so each file's rows get its batch."""
    schema = json.loads(metadata["schemaString"])
    schema["fields"].append({"name": BATCH, "type": "long", "nullable": True, "metadata": {}})
    return {**metadata, "schemaString": json.dumps(schema), "partitionColumns": [*metadata["partitionColumns"], BATCH]}
