"""Other writers of a table that use Spark, all in one application."""

import random
from collections.abc import Callable, Sequence

from delta import exceptions
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.crowds import NOTE, Writer, noted
from tests.support.publication_schedules import rows_of
from tests.support.sink_kinds import Rows

_USER_METADATA = f"spark.databricks.delta.commitInfo.{NOTE}"
_APPEND_ONLY = "'delta.appendOnly'"

_CONFLICTS = tuple(
    found for found in vars(exceptions).values() if isinstance(found, type) and issubclass(found, PySparkException)
)
"""Delta's errors of a transaction that conflicts with an earlier one."""
_LATE = {"DELTA_CANNOT_MODIFY_APPEND_ONLY", "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "FIELD_ALREADY_EXISTS"}
"""Conditions of the errors of a statement that comes after another writer's change of the table."""


class SparkWriter(Writer):
    """Appends, deletes, updates, merges, compacts, vacuums, restores, clones, adds columns, and blocks changes of rows for a while."""

    def __init__(self, spark: SparkSession, table: str, draw: random.Random, name: int) -> None:
        super().__init__(table, draw, name)
        self._spark = spark.newSession()
        self.clones: list[str] = []

    def actions(self) -> Sequence[tuple[Callable[[], object], int]]:
        return [
            (self._append, 5),
            (self._delete, 2),
            (self._update, 2),
            (self._merge, 2),
            (self._restore, 1),
            (self._clone, 1),
            (self._compact, 2),
            (lambda: self._do("VACUUM {table}", "vacuum"), 1),
            (lambda: self._do("VACUUM {table} LITE", "vacuum"), 1),
            (self._add_column, 1),
            (lambda: self._do(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({_APPEND_ONLY} = 'true')", "forbid"), 1),
            (self.undo, 1),
        ]

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, _CONFLICTS) or (isinstance(error, PySparkException) and error.getCondition() in _LATE)

    def append(self, number: int) -> None:
        self._do(f"INSERT INTO {{table}} (id, day) VALUES ({number}, 'x')", "append", id=number)

    def undo(self) -> None:
        self._do(f"ALTER TABLE {{table}} UNSET TBLPROPERTIES IF EXISTS ({_APPEND_ONLY})", "allow")

    def _do(self, statement: str, did: str, **what: int) -> None:
        self._spark.conf.set(_USER_METADATA, noted(did, **what))
        self._spark.sql(statement.format(table=f"delta.`{self._table}`"))

    def _delete(self) -> None:
        number = self._some_id()
        self._do(f"DELETE FROM {{table}} WHERE id = {number}", "delete", id=number)

    def _update(self) -> None:
        number = self._some_id()
        self._do(f"UPDATE {{table}} SET day = 'u' WHERE id = {number}", "update", id=number)

    def _merge(self) -> None:
        self._add(self._merge_with)

    def _merge_with(self, number: int) -> None:
        """Adds a row. Updates a row of the product, or adds it before the product does."""
        also = self._some_id()
        self._do(
            f"MERGE INTO {{table}} t USING (SELECT * FROM VALUES ({number}), ({also}) AS v (id)) s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET day = 'm' WHEN NOT MATCHED THEN INSERT (id, day) VALUES (s.id, 'm')",
            "merge",
            id=number,
            also=also,
        )

    def _compact(self) -> None:
        self._do("OPTIMIZE {table}", "compact")

    def _restore(self) -> None:
        version = self._some_version()
        self._do(f"RESTORE TABLE {{table}} TO VERSION AS OF {version}", "restore", version=version)

    def _clone(self) -> None:
        clone = f"{self._table} clone {self._name} {len(self.clones)}"
        self._do(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE {{table}}", "clone")
        self.clones.append(clone)

    def _add_column(self) -> None:
        number = len(self._spark.read.format("delta").load(self._table).columns)
        self._do(f"ALTER TABLE {{table}} ADD COLUMNS (note_{number} STRING)", "add a column")


class MergingSparkWriter(SparkWriter):
    """Merges and compacts only, so that a race with few actions has both."""

    def actions(self) -> Sequence[tuple[Callable[[], object], int]]:
        return [(self._merge, 1), (self._compact, 1)]


def assert_clones_are_versions(writers: Sequence[SparkWriter], spark: SparkSession, versions: list[Rows]) -> None:
    """Checks that each clone has the rows of one version of the table."""
    for clone in (clone for writer in writers for clone in writer.clones):
        assert rows_of(clone, spark) in versions
