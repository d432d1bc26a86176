"""Actions of other writers on a sink's table while a checkpoint is published into it, and their expected outcomes.

The table in docs/reference/concurrent-writers.md shows the same outcomes; a test compares them.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import NotFoundError, SparkRequiredError, StreamPipelineError, UnsupportedTableError
from tests.support.sink_kinds import Rows
from tests.support.staged_pipeline import SCHEMA, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRANGER: Row = (100, "a")
"""The row that another writer adds."""
DELETED_ID, UPDATED_ID = 2, 3


class Outcome(Enum):
    """The outcome of a publication after another writer's action."""

    RIGHT = "right"
    REPLACED = "right, replaces it"
    UNSUPPORTED = f"refused, `{UnsupportedTableError.__name__}`"
    GONE = f"refused, `{NotFoundError.__name__}`"
    CHECKED = "right, checked by Spark"

    def error(self, *, spark: bool) -> type[StreamPipelineError] | None:
        """Returns the error of the publication, with or without Spark."""
        if not spark and self is Outcome.CHECKED:
            return SparkRequiredError
        refusals: dict[Outcome, type[StreamPipelineError]] = {
            Outcome.UNSUPPORTED: UnsupportedTableError,
            Outcome.GONE: NotFoundError,
        }
        return refusals.get(self)


RIGHT, REPLACED, UNSUPPORTED, GONE = Outcome.RIGHT, Outcome.REPLACED, Outcome.UNSUPPORTED, Outcome.GONE
CHECKED = Outcome.CHECKED


@dataclass(frozen=True)
class Action:
    """An action of another writer.

    Args:
        name: The name on the page.
        append: The outcome of a later publication by a sink with this mode.
        complete: The outcome for this mode.
        upsert: The outcome for this mode.
        effect: Returns the rows of the table after the action.
        late: The outcome of repeating a publication that was made before the action.
        by_delta_rs: Does the action with delta-rs, given the table's path.
        by_spark: Does the action with Spark: a function, or statements with ``{table}`` and ``{directory}`` in them.
        touches_day: True if the action removes the column ``day``. An upsert ordered by it is then refused.
        partitioned: True if the table is partitioned.
        mapped: True if the table has column mapping.
    """

    name: str
    append: Outcome
    complete: Outcome
    upsert: Outcome
    effect: Callable[[Rows], Rows] = list
    late: Outcome = RIGHT
    by_delta_rs: Callable[[str], object] | None = None
    by_spark: tuple[str, ...] = field(default=())
    touches_day: bool = False
    partitioned: bool = True
    mapped: bool = False

    def outcome(self, mode: SinkMode, *, ordered: bool = False) -> Outcome:
        """Returns the outcome of a publication after the action. With ``ordered``, an upsert is ordered by the days."""
        if ordered and self.touches_day:
            return UNSUPPORTED
        return {SinkMode.APPEND: self.append, SinkMode.COMPLETE: self.complete, SinkMode.UPSERT: self.upsert}[mode]

    def carry_out(self, table: Path, spark: "SparkSession | None") -> None:
        """Does the action: with Spark if there is a session, otherwise with delta-rs."""
        if spark is None:
            assert self.by_delta_rs is not None
            self.by_delta_rs(str(table))
            return
        for statement in self.by_spark:
            if statement == REMOVE:
                shutil.rmtree(table)
            else:
                spark.sql(statement.format(table=f"delta.`{table}`", beside=f"delta.`{table}-other`"))


REMOVE = "remove the directory"
_SAME_COLUMNS = "(id LONG, day STRING) USING delta PARTITIONED BY (day)"
_COLUMNS_OF_THE_TABLE = f"SELECT CAST({STRANGER[0]} AS LONG) AS id, '{STRANGER[1]}' AS day"


def _stranger() -> pa.Table:
    return pa.table({"id": [STRANGER[0]], "day": [STRANGER[1]]}, SCHEMA)


def _add(rows: Rows) -> Rows:
    return [*rows, STRANGER]


def _delete(rows: Rows) -> Rows:
    return [row for row in rows if row[0] != DELETED_ID]


def _update(rows: Rows) -> Rows:
    return [(number, "u" if number == UPDATED_ID else day) for number, day in rows]


def _none(rows: Rows) -> Rows:
    return []


def _only_stranger(rows: Rows) -> Rows:
    return [STRANGER]


def _without_days(rows: Rows) -> Rows:
    return [(number, None) for number, _ in rows]


def _vacuum(table: str, *, full: bool) -> object:
    return DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)


def _merge(table: str) -> object:
    merge = DeltaTable(table).merge(_stranger(), "t.id = s.id", source_alias="s", target_alias="t")
    return merge.when_not_matched_insert_all().execute()


def _checkpoint(table: str) -> None:
    opened = DeltaTable(table)
    opened.create_checkpoint()
    opened.cleanup_metadata()


def _replace_table(table: str) -> object:
    return DeltaTable.create(table, SCHEMA, partition_by=["day"], mode="overwrite")


def _recreate(table: str) -> None:
    shutil.rmtree(table)
    DeltaTable.create(table, SCHEMA, partition_by=["day"])


def _repartition(table: str) -> None:
    write_deltalake(table, _stranger(), mode="overwrite", schema_mode="overwrite", partition_by=["id"])


ACTIONS = [
    Action(
        "appends rows",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_add,
        by_delta_rs=lambda table: write_deltalake(table, _stranger(), mode="append"),
        by_spark=("INSERT INTO {table} VALUES (100, 'a')",),
    ),
    Action(
        "deletes published rows",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_delete,
        by_delta_rs=lambda table: DeltaTable(table).delete(f"id = {DELETED_ID}"),
        by_spark=(f"DELETE FROM {{table}} WHERE id = {DELETED_ID}",),
    ),
    Action(
        "updates published rows",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_update,
        by_delta_rs=lambda table: DeltaTable(table).update({"day": "'u'"}, predicate=f"id = {UPDATED_ID}"),
        by_spark=(f"UPDATE {{table}} SET day = 'u' WHERE id = {UPDATED_ID}",),
    ),
    Action(
        "merges rows",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_add,
        by_delta_rs=_merge,
        by_spark=(f"MERGE INTO {{table}} t USING ({_COLUMNS_OF_THE_TABLE}) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",),
    ),
    Action(
        "overwrites all rows",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_only_stranger,
        by_delta_rs=lambda table: write_deltalake(table, _stranger(), mode="overwrite"),
        by_spark=("INSERT OVERWRITE {table} VALUES (100, 'a')",),
    ),
    Action(
        "OPTIMIZE",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).optimize.compact(),
        by_spark=("OPTIMIZE {table}",),
    ),
    Action(
        "VACUUM LITE, with any retention",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: _vacuum(table, full=False),
        by_spark=("VACUUM {table} LITE RETAIN 0 HOURS",),
    ),
    Action(
        "VACUUM past the retention of staged files",
        append=GONE,
        complete=GONE,
        upsert=RIGHT,
        by_delta_rs=lambda table: _vacuum(table, full=True),
        by_spark=("VACUUM {table} RETAIN 0 HOURS",),
    ),
    Action(
        "writes a checkpoint of the log and cleans the log", append=RIGHT, complete=RIGHT, upsert=RIGHT, by_delta_rs=_checkpoint
    ),
    Action(
        "adds a nullable column at the end",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).alter.add_columns([Field("note", PrimitiveType("string"))]),
        by_spark=("ALTER TABLE {table} ADD COLUMNS (note STRING)",),
    ),
    Action(
        "adds a column elsewhere",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_spark=("ALTER TABLE {table} ADD COLUMNS (note STRING AFTER id)",),
    ),
    Action(
        "comments on a column",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).alter.set_column_metadata("id", {"comment": "a number"}),
        by_spark=("ALTER TABLE {table} ALTER COLUMN id COMMENT 'a number'",),
    ),
    Action(
        "renames a column",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_spark=("ALTER TABLE {table} RENAME COLUMN day TO date",),
        touches_day=True,
        partitioned=False,
        mapped=True,
    ),
    Action(
        "drops a column",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        effect=_without_days,
        by_spark=("ALTER TABLE {table} DROP COLUMN day",),
        touches_day=True,
        partitioned=False,
        mapped=True,
    ),
    Action(
        "adds a CHECK constraint",
        append=CHECKED,
        complete=CHECKED,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).alter.add_constraint({"positive": "id > 0"}),
        by_spark=("ALTER TABLE {table} ADD CONSTRAINT positive CHECK (id > 0)",),
    ),
    Action(
        "changes the partitioning",
        append=UNSUPPORTED,
        complete=UNSUPPORTED,
        upsert=UNSUPPORTED,
        effect=_only_stranger,
        by_delta_rs=_repartition,
        by_spark=(f"CREATE OR REPLACE TABLE {{table}} USING delta PARTITIONED BY (id) AS {_COLUMNS_OF_THE_TABLE}",),
    ),
    Action(
        "adds a table feature",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).alter.add_feature(TableFeatures.ChangeDataFeed, True),
        by_spark=("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",),
    ),
    Action(
        "sets `delta.setTransactionRetentionDuration`",
        append=UNSUPPORTED,
        complete=UNSUPPORTED,
        upsert=UNSUPPORTED,
        by_delta_rs=lambda table: DeltaTable(table).alter.set_table_properties(
            {"delta.setTransactionRetentionDuration": "interval 30 days"}
        ),
        by_spark=("ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 30 days')",),
    ),
    Action(
        "sets `delta.appendOnly`",
        append=RIGHT,
        complete=UNSUPPORTED,
        upsert=UNSUPPORTED,
        by_delta_rs=lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
        by_spark=("ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",),
    ),
    Action(
        "sets another property",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_delta_rs=lambda table: DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"}),
        by_spark=("ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 9 days')",),
    ),
    Action(
        "RESTORE to before a publication",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_none,
        by_delta_rs=lambda table: DeltaTable(table).restore(0),
        by_spark=("RESTORE TABLE {table} TO VERSION AS OF 0",),
    ),
    Action(
        "clones it",
        append=RIGHT,
        complete=RIGHT,
        upsert=RIGHT,
        by_spark=("CREATE TABLE {beside} SHALLOW CLONE {table}",),
    ),
    Action(
        "empties it and turns it into a clone of another table",
        append=RIGHT,
        complete=REPLACED,
        upsert=RIGHT,
        effect=_only_stranger,
        by_spark=(
            "DELETE FROM {table}",
            f"CREATE TABLE {{beside}} {_SAME_COLUMNS}",
            "INSERT INTO {beside} VALUES (100, 'a')",
            "CREATE OR REPLACE TABLE {table} SHALLOW CLONE {beside}",
        ),
    ),
    Action(
        "CREATE OR REPLACE TABLE",
        append=UNSUPPORTED,
        complete=UNSUPPORTED,
        upsert=UNSUPPORTED,
        effect=_none,
        by_delta_rs=_replace_table,
        by_spark=(f"CREATE OR REPLACE TABLE {{table}} USING delta PARTITIONED BY (day) AS {_COLUMNS_OF_THE_TABLE} WHERE false",),
    ),
    Action(
        "drops it",
        append=GONE,
        complete=GONE,
        upsert=GONE,
        effect=_none,
        late=GONE,
        by_delta_rs=shutil.rmtree,
        by_spark=(REMOVE,),
    ),
    Action(
        "drops and recreates it",
        append=UNSUPPORTED,
        complete=UNSUPPORTED,
        upsert=UNSUPPORTED,
        effect=_none,
        late=UNSUPPORTED,
        by_delta_rs=_recreate,
        by_spark=(REMOVE, f"CREATE TABLE {{table}} {_SAME_COLUMNS}"),
    ),
]
