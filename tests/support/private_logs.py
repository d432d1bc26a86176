"""Private logs without Spark: batches whose staged files do not exist."""

import json
from pathlib import Path
from typing import Any

from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.table_shape import StagedFor, StagedSince, TableShape
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.storage.files import Files

SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
METADATA: dict[str, Any] = {
    "id": "the-table",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(SCHEMA),
    "partitionColumns": [],
    "configuration": {"delta.columnMapping.mode": "none"},
    "createdTime": 1,
}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
SHAPE = TableShape(table_schema=METADATA["schemaString"], partition_by=(), configuration={}, features=())
STAGED_FOR = StagedFor(table_id="the-table", since=(StagedSince(first=BatchId(0), shape=SHAPE),))
TABLE = "file:///data/my%20table"


def add(name: str, rows: int = 2) -> dict[str, object]:
    stats = json.dumps({"numRecords": rows})
    return {"path": name, "partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": True, "stats": stats}


def staged(batch: int, *names: str, offsets: str = "s", newest: int = 7) -> StagedBatch:
    return StagedBatch(BatchId(batch), offsets, 2 * len(names), 1, {"events": newest}, tuple(add(name) for name in names))


def begun(files: Files, directory: str = "log") -> PrivateLog:
    log = PrivateLog(files, directory, TABLE)
    log.begin(METADATA, PROTOCOL, STAGED_FOR)
    return log


def versions(root: Path, directory: str = "log") -> list[str]:
    """Returns the names in the log without the leading zeros."""
    return sorted(path.name[16:] for path in (root / directory / "_delta_log").iterdir() if not path.name.startswith("."))
