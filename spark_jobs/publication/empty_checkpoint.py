"""A Delta checkpoint without files. Readers can begin a log in its middle, such as a stage's private log.

A batch reader sees no rows from before it. A stream beyond it reads only later versions, and takes schema and protocol from here.
"""

from collections.abc import Mapping
from typing import Any


def empty_checkpoint(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a classic checkpoint with a table's protocol and metadata and without files.

    Args:
        protocol: The log's ``protocol`` action.
        metadata: Its ``metaData`` action.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    entries = metadata.get("format", {})
    rows = [
        {"protocol": dict(protocol)},
        {
            "metaData": dict(metadata)
            | {
                "format": {"provider": entries.get("provider", "parquet"), "options": list(entries.get("options", {}).items())},
                "configuration": list(metadata.get("configuration", {}).items()),
            }
        },
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema()), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _schema() -> Any:
    import pyarrow as pa

    texts, settings = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())
    return pa.schema(
        {
            "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
            "add": pa.struct(
                {
                    "path": pa.string(),
                    "partitionValues": settings,
                    "size": pa.int64(),
                    "modificationTime": pa.int64(),
                    "dataChange": pa.bool_(),
                    "stats": pa.string(),
                    "tags": settings,
                }
            ),
            "remove": pa.struct(
                {
                    "path": pa.string(),
                    "deletionTimestamp": pa.int64(),
                    "dataChange": pa.bool_(),
                    "extendedFileMetadata": pa.bool_(),
                    "partitionValues": settings,
                    "size": pa.int64(),
                }
            ),
            "metaData": pa.struct(
                {
                    "id": pa.string(),
                    "name": pa.string(),
                    "description": pa.string(),
                    "format": pa.struct({"provider": pa.string(), "options": settings}),
                    "schemaString": pa.string(),
                    "partitionColumns": texts,
                    "configuration": settings,
                    "createdTime": pa.int64(),
                }
            ),
            "protocol": pa.struct(
                {
                    "minReaderVersion": pa.int32(),
                    "minWriterVersion": pa.int32(),
                    "readerFeatures": texts,
                    "writerFeatures": texts,
                }
            ),
        }
    )
