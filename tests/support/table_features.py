"""The kinds of tables that the tests try, and their rows in ``docs/reference/tables.md``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from spark_jobs.protocol.documents import Publisher, SinkMode

SPARK, DELTA_RS = Publisher.SPARK, Publisher.DELTA_RS
COLUMNS = "id LONG, seq LONG, value INT, name STRING"
STAGED = ("id", "seq", "value", "name")
MODES = (SinkMode.APPEND, SinkMode.COMPLETE, SinkMode.UPSERT)
"""Modes for which tables are created. The other modes with keys merge as an upsert does."""
ALL_MODES = frozenset(MODES)
APPEND_AND_UPSERT = frozenset({SinkMode.APPEND, SinkMode.UPSERT})
"""The modes without a replacement, which has its own tests (tests/spark/test_complete_sinks.py)."""
AT_NIGHT: frozenset[SinkMode] = frozenset()
"""No everyday modes: for another version of a kind of table that every run tries, or for a kind with tests elsewhere."""
DELTA_RS_READER, DUCKDB_READER = "delta-rs", "DuckDB"
READERS = frozenset({DELTA_RS_READER, DUCKDB_READER})
"""The readers besides Spark, which reads everything."""
READ_BY_ICEBERG = {"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV2": "true"}
"""The properties of tables that only Spark appends to."""
OLDEST = Version("4.0")
"""The oldest Spark that this package supports."""


@dataclass(frozen=True)
class Feature:
    """A kind of table.

    Args:
        title: The name on the page.
        protocol: Its table features in Delta's protocol, besides those that every new table has.
        columns: The columns of the table, as SQL declares them.
        clauses: The end of its CREATE TABLE.
        properties: Its TBLPROPERTIES.
        sink: Options of the sink, which makes the table. None: SQL makes it.
        held: The rows that are inserted before the first round, as SQL lists them.
        before: SQL between them and the first round. ``{table}`` stands for the table.
        staged: The result of the stage, as expressions over the input.
        answer: The rows of the table as expressions over the input. Default: ``staged``.
        columns_of_answer: The expressions that read these columns. Default: their names.
        elsewhere: The columns that engines other than Spark read. Default: all.
        between: SQL between the two rounds, as ``before``.
        deleted: The condition of the rows that a statement of ``between`` deletes.
        appended_by: The publisher of an append.
        publisher: The publisher of a replacement.
        merged_by: The publisher of an upsert.
        modes: The possible modes. The others are refused.
        everyday: The modes that every run of the tests tries. The others wait for the night.
        readers: The readers of the table besides Spark.
        since: The first Spark whose Delta makes such a table.
    """

    title: str
    protocol: frozenset[str] = frozenset()
    columns: str = COLUMNS
    clauses: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, Any] | None = None
    held: str | None = None
    before: tuple[str, ...] = ()
    staged: tuple[str, ...] = STAGED
    answer: tuple[str, ...] | None = None
    columns_of_answer: tuple[str, ...] | None = None
    elsewhere: tuple[str, ...] | None = None
    between: tuple[str, ...] = ()
    deleted: str = "false"
    appended_by: Publisher = DELTA_RS
    publisher: Publisher = DELTA_RS
    merged_by: Publisher = DELTA_RS
    modes: frozenset[SinkMode] = ALL_MODES
    everyday: frozenset[SinkMode] = frozenset({SinkMode.APPEND})
    readers: frozenset[str] = READERS
    since: Version = OLDEST

    @property
    def key(self) -> str:
        """Returns the name of its stage, its sink and its table's directory."""
        return "_".join(re.findall(r"\w+", self.title.partition(" (")[0])).lower()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns of the answer."""
        return self.columns_of_answer or tuple(text.rpartition(" ")[2] for text in self.answer or self.staged)

    def published_by(self, mode: SinkMode) -> Publisher:
        """Returns the publisher of a sink of this mode."""
        if mode is SinkMode.APPEND:
            return self.appended_by
        return SPARK if SPARK in (self.publisher, self.merged_by if mode is SinkMode.UPSERT else DELTA_RS) else DELTA_RS

    def create(self, table: str) -> str:
        """Returns the statement that makes the table."""
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in self.properties.items())
        properties = f" TBLPROPERTIES ({listed})" if listed else ""
        return f"CREATE TABLE {table} ({self.columns}) USING delta {self.clauses}{properties}"


FEATURES = (
    Feature("no table feature"),
    Feature(
        "partitions (spaces, `%`, `/`, unicode, null, dates, decimals, timestamps)",
        sink={"partition_by": ["region", "day", "price", "at"]},
        staged=(*STAGED, "region", "day", "price", "at"),
    ),
    Feature(
        "`CHECK` constraints",
        frozenset({"checkConstraints"}),
        properties={"delta.constraints.small": "value < 1000"},
        everyday=AT_NIGHT,
        merged_by=SPARK,
    ),
    Feature(
        "`NOT NULL`",
        frozenset({"invariants"}),
        columns="id LONG NOT NULL, seq LONG NOT NULL, value INT NOT NULL, name STRING",
        everyday=AT_NIGHT,
    ),
    Feature(
        "generated columns",
        frozenset({"generatedColumns"}),
        columns=f"{COLUMNS}, at TIMESTAMP, hour INT GENERATED ALWAYS AS (hour(at)), double LONG GENERATED ALWAYS AS (seq * 2)",
        clauses="PARTITIONED BY (hour)",
        staged=(*STAGED, "at"),
        answer=(*STAGED, "at", "hour(at) AS hour", "seq * 2 AS double"),
        merged_by=SPARK,
        since=Version("4.2"),
    ),
    Feature(
        "column mapping by name",
        frozenset({"columnMapping"}),
        columns="id LONG, seq LONG, value INT, name STRING, `a b` STRING",
        properties={"delta.columnMapping.mode": "name"},
        staged=(*STAGED, "region AS `a b`"),
        columns_of_answer=(*STAGED, "`a b`"),
        everyday=AT_NIGHT,
    ),
    Feature(
        "column mapping by name, and partitions",
        frozenset({"columnMapping"}),
        columns="id LONG, seq LONG, value INT, name STRING, `a b` STRING",
        clauses="PARTITIONED BY (name, `a b`)",
        properties={"delta.columnMapping.mode": "name"},
        staged=(*STAGED, "region AS `a b`"),
        columns_of_answer=(*STAGED, "`a b`"),
        readers=frozenset({DELTA_RS_READER}),
        everyday=AT_NIGHT,
    ),
    Feature(
        "column mapping by id",
        frozenset({"columnMapping"}),
        properties={"delta.columnMapping.mode": "id"},
        everyday=AT_NIGHT,
        merged_by=SPARK,
    ),
    Feature(
        "deletion vectors",
        frozenset({"deletionVectors"}),
        properties={"delta.enableDeletionVectors": "true"},
        between=("DELETE FROM {table} WHERE id % 7 = 3",),
        deleted="id % 7 = 3",
        everyday=APPEND_AND_UPSERT,
    ),
    Feature(
        "change data feed",
        frozenset({"changeDataFeed"}),
        properties={"delta.enableChangeDataFeed": "true"},
        everyday=frozenset({SinkMode.UPSERT}),
    ),
    Feature(
        "append only",
        frozenset({"appendOnly"}),
        properties={"delta.appendOnly": "true"},
        modes=frozenset({SinkMode.APPEND}),
        everyday=AT_NIGHT,
    ),
    Feature(
        "`TIMESTAMP_NTZ`",
        frozenset({"timestampNtz"}),
        columns=f"{COLUMNS}, noon TIMESTAMP_NTZ",
        staged=(*STAGED, "CAST(at AS TIMESTAMP_NTZ) AS noon"),
        everyday=AT_NIGHT,
    ),
    Feature(
        "`VARIANT`",
        frozenset({"variantType"}),
        columns=f"{COLUMNS}, payload VARIANT",
        staged=(*STAGED, "parse_json(concat('{\"value\":', value, '}')) AS payload"),
        answer=(*STAGED, "concat('{\"value\":', value, '}') AS payload"),
        columns_of_answer=(*STAGED, "to_json(payload) AS payload"),
        elsewhere=STAGED,
        everyday=AT_NIGHT,
        merged_by=SPARK,
    ),
    Feature(
        "v2 checkpoints",
        frozenset({"v2Checkpoint"}),
        properties={"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"},
        between=("ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'us')",),
        everyday=AT_NIGHT,
    ),
    Feature(
        "row tracking",
        frozenset({"rowTracking", "domainMetadata"}),
        properties={"delta.enableRowTracking": "true"},
        publisher=SPARK,
    ),
    Feature(
        "clustering",
        frozenset({"clustering", "domainMetadata"}),
        sink={"cluster_by": ["name", "value"]},
        publisher=SPARK,
        everyday=AT_NIGHT,
    ),
    Feature(
        "in-commit timestamps",
        frozenset({"inCommitTimestamp"}),
        properties={"delta.enableInCommitTimestamps": "true"},
        publisher=SPARK,
        everyday=AT_NIGHT,
    ),
    Feature(
        "type widening",
        frozenset({"typeWidening"}),
        columns="id LONG, seq LONG, value SMALLINT, name STRING",
        properties={"delta.enableTypeWidening": "true"},
        held="(-1, 0, -7, 'narrow'), (25, 0, 32767, 'narrow')",
        before=("ALTER TABLE {table} ALTER COLUMN value TYPE INT",),
        publisher=SPARK,
        readers=frozenset({DUCKDB_READER}),
    ),
    Feature(
        "`DEFAULT` values",
        frozenset({"allowColumnDefaults"}),
        columns=f"{COLUMNS} DEFAULT 'nobody', since DATE DEFAULT DATE'2020-02-29', size LONG DEFAULT 40 + 2, nothing STRING",
        properties={"delta.feature.allowColumnDefaults": "supported"},
        staged=("id", "seq", "value"),
        answer=(
            "id",
            "seq",
            "value",
            "'nobody' AS name",
            "DATE'2020-02-29' AS since",
            "42L AS size",
            "CAST(NULL AS STRING) AS nothing",
        ),
        publisher=SPARK,
    ),
    Feature(
        "Iceberg compatibility, version 1",
        frozenset({"icebergCompatV1", "columnMapping"}),
        properties={"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV1": "true"},
        appended_by=SPARK,
        publisher=SPARK,
        everyday=AT_NIGHT,
    ),
    Feature(
        "Iceberg compatibility, version 2",
        frozenset({"icebergCompatV2", "columnMapping"}),
        properties=READ_BY_ICEBERG,
        appended_by=SPARK,
        publisher=SPARK,
        everyday=AT_NIGHT,
    ),
    Feature(
        "Iceberg compatibility, version 3",
        frozenset({"icebergCompatV3", "columnMapping", "rowTracking", "domainMetadata"}),
        properties={
            "delta.columnMapping.mode": "name",
            "delta.enableRowTracking": "true",
            "delta.enableIcebergCompatV3": "true",
        },
        appended_by=SPARK,
        publisher=SPARK,
        everyday=AT_NIGHT,
        since=Version("4.1"),
    ),
    Feature(
        "`VARIANT`, shredded",
        frozenset({"variantType", "variantShredding"}),
        columns=f"{COLUMNS}, payload VARIANT",
        properties={"delta.feature.variantShredding": "supported", "delta.enableVariantShredding": "true"},
        staged=(*STAGED, "parse_json(concat('{\"value\":', value, '}')) AS payload"),
        answer=(*STAGED, "concat('{\"value\":', value, '}') AS payload"),
        columns_of_answer=(*STAGED, "to_json(payload) AS payload"),
        elsewhere=STAGED,
        publisher=SPARK,
        readers=frozenset(),
        everyday=AT_NIGHT,
        since=Version("4.1"),
    ),
    Feature(
        "features for log retention (vacuum protocol check, checkpoint protection, materialized partition columns)",
        frozenset({"vacuumProtocolCheck", "checkpointProtection", "materializePartitionColumns"}),
        properties={
            "delta.feature.vacuumProtocolCheck": "supported",
            "delta.feature.checkpointProtection": "supported",
            "delta.feature.materializePartitionColumns": "supported",
        },
        publisher=SPARK,
        readers=frozenset({DUCKDB_READER}),
        everyday=AT_NIGHT,
        since=Version("4.1"),
    ),
    Feature(
        "`VARIANT` under its preview name",
        frozenset({"variantType-preview"}),
        properties={"delta.feature.variantType-preview": "supported"},
        everyday=AT_NIGHT,
    ),
    Feature(
        "other features under their preview names",
        frozenset({"typeWidening-preview", "variantShredding-preview"}),
        properties={
            "delta.feature.typeWidening-preview": "supported",
            "delta.feature.variantShredding-preview": "supported",
        },
        publisher=SPARK,
        readers=frozenset({DUCKDB_READER}),
        everyday=AT_NIGHT,
    ),
)


@dataclass(frozen=True)
class Refused:
    """A kind of table that no publisher supports.

    Args:
        title: The name on the page.
        evidence: The text that the error names.
        protocol: The writer features in its log; ``configuration`` are its properties; ``field_metadata`` is that of its column ``id``.
        writer_version: The writer version of its protocol: 7 with table features, otherwise another one.
    """

    title: str
    evidence: str
    protocol: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    field_metadata: Mapping[str, Any] = field(default_factory=dict)
    writer_version: int = 7


REFUSED = (
    Refused(
        "identity columns", "identityColumns", ("identityColumns",), {}, {"delta.identity.start": 1, "delta.identity.step": 1}
    ),
    Refused("tables that a catalog manages", "catalogManaged", ("catalogManaged", "inCommitTimestamp")),
    Refused("coordinated commits", "coordinatedCommits-preview", ("coordinatedCommits-preview", "inCommitTimestamp")),
    Refused(
        "`delta.setTransactionRetentionDuration`",
        "delta.setTransactionRetentionDuration",
        ("appendOnly",),
        configuration={"delta.setTransactionRetentionDuration": "interval 30 days"},
    ),
    Refused("unknown table features", "somethingNew", ("somethingNew",)),
    Refused("a newer protocol", "writer version 8", writer_version=8),
)
