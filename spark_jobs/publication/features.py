"""Decides which tables can be published into exactly once, and by which publisher."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.table_shape import COLUMN_MAPPING, CONSTRAINT, PHYSICAL_NAME
from spark_jobs.storage.object_store_kinds import is_in_object_store

DELTA_RS_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""The table features that delta-rs can commit with. Spark enforces them when it stages rows."""

APPEND_FEATURES = DELTA_RS_FEATURES | {
    "allowColumnDefaults",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "inCommitTimestamp",
    "materializePartitionColumns",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantShredding-preview",
}
"""The table features that an append without a JVM can commit with. delta-rs has no part in it.

Two of them need something of an append: see :mod:`spark_jobs.publication.append_commit`.
"""

SPARK_FEATURES = APPEND_FEATURES | {"icebergCompatV1", "icebergCompatV2", "icebergCompatV3"}
"""The table features that Spark can commit staged files with. It adds what they need in the transaction.

A commit to a table that Iceberg reads may also have to write Iceberg's metadata, so only Spark makes it.
"""

_MAPPING = frozenset({"delta.columnMapping.id", PHYSICAL_NAME})
_HAS_MEANING = re.compile(r"delta\.|__|CURRENT_DEFAULT|EXISTS_DEFAULT")
"""The prefixes of column metadata that have a meaning for Delta and Spark. All other metadata is for people."""
_MERGED_TYPES = re.compile(
    r"boolean|byte|short|integer|long|float|double|string|binary|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)
_VECTORS = "deletionVectors"
_ESCAPE = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_FORGETTING = "delta.setTransactionRetentionDuration"
_IDENTITY = "identityColumns"
_LEGACY_IDENTITY_WRITER = 6
_FEATURE_WRITER = 7


def obstacles(
    publisher: Publisher,
    features: Collection[str],
    writer_version: int,
    configuration: Mapping[str, str],
    *,
    identity: bool,
    appends: bool,
) -> list[str]:
    """Returns the features of a table that ``publisher`` cannot commit with or that break exactly-once publication.

    Args:
        publisher: Publisher that commits.
        features: Reader and writer features of the table.
        writer_version: Writer version of the protocol.
        configuration: Properties of the table.
        identity: True if the table has an identity column.
        appends: True if the commit only adds files.
    """
    without_jvm = APPEND_FEATURES if appends else DELTA_RS_FEATURES
    committable = SPARK_FEATURES if publisher is Publisher.SPARK else without_jvm
    found = sorted(set(features) - committable)
    if _IDENTITY not in found and (identity or writer_version == _LEGACY_IDENTITY_WRITER):
        found.append(_IDENTITY)
    if writer_version > _FEATURE_WRITER:
        found.append(f"writer version {writer_version}")
    if _FORGETTING in configuration:
        found.append(_FORGETTING)
    return found


def merge_obstacles(fields: Iterable[Mapping[str, Any]], configuration: Mapping[str, str]) -> list[str]:
    """Returns the features of a table for which a merge of delta-rs differs from Spark's.

    A merge computes the table's generated columns and constraints. Only Spark can evaluate their expressions.

    Args:
        fields: Columns of the table in Delta's notation.
        configuration: Properties of the table.
    """
    found = [name for name in sorted(configuration) if name.startswith(CONSTRAINT)]
    if configuration.get(COLUMN_MAPPING, "none").lower() not in ("none", "name"):
        found.append(f"{COLUMN_MAPPING}={configuration[COLUMN_MAPPING]}")
    for field in fields:
        if not (isinstance(field["type"], str) and _MERGED_TYPES.fullmatch(field["type"])):
            found.append(
                f"column {field['name']} of type {field['type'] if isinstance(field['type'], str) else field['type']['type']}"
            )
        meanings = sorted(name for name in field["metadata"] if _HAS_MEANING.match(name) and name not in _MAPPING)
        found += [f"{name} on column {field['name']}" for name in meanings]
    return found


def unreadable_vectors(uri: str, features: Collection[str]) -> list[str]:
    """Returns deletion vectors that delta-rs does not find, and so cannot merge onto.

    In an object store, delta-rs escapes the path of a deletion vector twice.

    Args:
        uri: URI of the table.
        features: Reader and writer features of the table.
    """
    escaped = _ESCAPE.search(uri) if is_in_object_store(uri) else None
    return [f"{_VECTORS} under a path with {unquote(escaped[0])!r}"] if escaped and _VECTORS in features else []


def candidates(mode: SinkMode) -> tuple[Publisher, ...]:
    """Returns the publishers for a sink mode, best first. Only Spark can publish a history, which is made from the table's own rows."""
    return (Publisher.SPARK,) if mode is SinkMode.HISTORY else (Publisher.DELTA_RS, Publisher.SPARK)
