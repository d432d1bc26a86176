"""Which tables can be published into exactly once, and by whom."""

from collections.abc import Collection, Mapping

from spark_jobs.protocol.documents import Publisher, SinkMode

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
"""The table features that delta-rs can commit with. Spark enforces them while it stages."""

SPARK_FEATURES = DELTA_RS_FEATURES | {
    "allowColumnDefaults",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "inCommitTimestamp",
    "materializePartitionColumns",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantShredding-preview",
}
"""The table features that Spark can commit with what was staged before: it adds what they need in the transaction itself."""

_FORGETTING = "delta.setTransactionRetentionDuration"
_IDENTITY = "identityColumns"
_LEGACY_IDENTITY_WRITER = 6
_FEATURE_WRITER = 7


def obstacles(
    publisher: Publisher, features: Collection[str], writer_version: int, configuration: Mapping[str, str], *, identity: bool
) -> list[str]:
    """What a table has that ``publisher`` cannot commit with, or that breaks exactly-once publication; empty if nothing.

    Args:
        publisher: Who is to commit.
        features: The table's reader and writer features.
        writer_version: The protocol's.
        configuration: The table's properties.
        identity: Whether it has an identity column.
    """
    committable = SPARK_FEATURES if publisher is Publisher.SPARK else DELTA_RS_FEATURES
    found = sorted(set(features) - committable)
    if _IDENTITY not in found and (identity or writer_version == _LEGACY_IDENTITY_WRITER):
        found.append(_IDENTITY)
    if writer_version > _FEATURE_WRITER:
        found.append(f"writer version {writer_version}")
    if _FORGETTING in configuration:
        found.append(_FORGETTING)
    return found


def candidates(mode: SinkMode) -> tuple[Publisher, ...]:
    """Who could publish a sink of this mode, best first."""
    return (Publisher.DELTA_RS, Publisher.SPARK) if mode in (SinkMode.APPEND, SinkMode.COMPLETE) else (Publisher.SPARK,)
