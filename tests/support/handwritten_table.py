"""Tables with a handwritten log, like those of a writer that supports every feature."""

import json
from pathlib import Path
from typing import Any

READER_FEATURES = {
    "catalogManaged",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantShredding-preview",
    "variantType",
    "variantType-preview",
}
MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c"}


def table_with(
    directory: Path,
    *features: str,
    writer: int = 7,
    reader: int | None = None,
    field: dict[str, Any] | None = None,
    properties: dict[str, str] | None = None,
) -> str:
    """Creates a table without files, with these table features, and returns its URI."""
    readers = sorted(READER_FEATURES & set(features))
    protocol: dict[str, Any] = {"minReaderVersion": reader or (3 if readers else 1), "minWriterVersion": writer}
    if writer == 7:
        protocol["writerFeatures"] = list(features)
    if readers:
        protocol["readerFeatures"] = readers
    metadata = MAPPED if "columnMapping" in features else {}
    columns = [{"name": "id", "type": "long", "nullable": True, "metadata": metadata} | (field or {})]
    configuration = (properties or {}) | ({"delta.columnMapping.mode": "name"} if "columnMapping" in features else {})
    meta_data = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 1,
    }
    log = directory / "t" / "_delta_log"
    log.mkdir(parents=True)
    actions = [{"protocol": protocol}, {"metaData": meta_data}]
    (log / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    return (directory / "t").as_uri()
