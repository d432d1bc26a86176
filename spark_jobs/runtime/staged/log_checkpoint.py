"""A Delta checkpoint without files: lets readers begin a private log in its middle.

Everything before it has been consumed, so what a batch reader of the log would see of it is nothing; a stream that is past it reads only
the versions after it, and takes schema and protocol from here.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TEXTS = pa.list_(pa.string())
_SETTINGS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _SETTINGS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _SETTINGS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _SETTINGS,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _SETTINGS}),
                "schemaString": pa.string(),
                "partitionColumns": _TEXTS,
                "configuration": _SETTINGS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _TEXTS,
                "writerFeatures": _TEXTS,
            }
        ),
    }
)


def empty_checkpoint(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """The bytes of a classic checkpoint that holds a table's protocol and metadata and names no file.

    Args:
        protocol: As in the log's ``protocol`` action.
        metadata: As in its ``metaData`` action.
    """
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
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
