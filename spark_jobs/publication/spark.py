"""The publisher for everything that delta-rs cannot do. Needs Spark: :mod:`spark_jobs.publication.publisher` loads it by name."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import SinkCut, SinkMode
from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedTableError,
    first_line,
)
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.publication.conditional_log_store import make_commits_conditional
from spark_jobs.publication.delta_jvm import DeltaJvm, JvmTransaction, java_causes, java_message
from spark_jobs.publication.delta_rs import LARGE_FILE_BYTES, OpenTable, open_table
from spark_jobs.publication.fitting import renaming
from spark_jobs.publication.labels import column_of
from spark_jobs.publication.merges import KeyedMerge, keyed_merge
from spark_jobs.publication.staged_frame import staged_frame
from spark_jobs.storage.table_uris import spark_path

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_COMPACTED_SIZES = ("spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize")
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class SparkPublisher:
    """Publishes through one Spark application.

    Args:
        spark: Any classic session with Delta. Each publication gets its own session, because settings of the session make a MERGE
            idempotent.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def begin(self, uri: str, app: AppId) -> "SparkTransaction":
        """Opens a table for one transaction.

        Raises:
            NotFoundError: There is no table.
            UnsupportedTableError: delta-rs cannot read the table.
            StorageError: The storage fails.
        """
        make_commits_conditional(self._spark, uri)
        session = self._session()
        with suppress(NotFoundError):
            transaction = _begin(session, uri, app)
            if transaction.has_read_what_is_there():
                return transaction
        with _spark_errors(uri):
            DeltaJvm(session).forget(spark_path(uri))
        return _begin(session, uri, app)

    def count_breaking(self, uri: str, lines: Iterable[Mapping[str, Any]], conditions: Mapping[str, str]) -> dict[str, int]:
        """Returns the number of rows in staged files that break each condition.

        As in Delta's checks, a condition that is null is broken.

        Raises:
            UnsupportedTableError: A condition cannot be evaluated on the rows.
            OutcomeUnknownError: Spark has failed. Repeat.
        """
        session = self._session()
        with _spark_errors(uri):
            _, metadata, protocol = DeltaJvm(session).snapshot(spark_path(uri))
            rows = staged_frame(session, uri, metadata, protocol, lines)
            counts = [F.count_if(~F.coalesce(F.expr(each), F.lit(False))) for each in conditions.values()]
            found = rows.agg(*counts).collect()[0]
        return dict(zip(conditions, map(int, found), strict=True))

    def rows_by_file(self, uri: str) -> dict[str, int]:
        """Returns the rows by file, as :func:`spark_jobs.publication.delta_rs.rows_by_file` does.

        Raises:
            OutcomeUnknownError: Spark has failed. Repeat.
        """
        with _spark_errors(uri):
            session = self._session()
            files = DataFrame(DeltaJvm(session).files(spark_path(uri)), session)
            found = files.selectExpr("path", "CAST(get_json_object(stats, '$.numRecords') AS LONG) AS rows").collect()
        return {unquote(row["path"]): int(row["rows"] or 1) for row in found}

    def compact(self, uri: str) -> None:
        """Merges small files; see :class:`spark_jobs.publication.deleted_keys.TableKeeper`.

        Raises:
            OutcomeUnknownError: Spark has failed. Repeat.
            ConflictError: Another writer was faster.
        """
        make_commits_conditional(self._spark, uri)
        session = self._session()
        for key in _COMPACTED_SIZES:
            session.conf.set(key, str(LARGE_FILE_BYTES))
        with _spark_errors(uri):
            DeltaTable.forPath(session, spark_path(uri)).optimize().executeCompaction()

    def checkpoint(self, uri: str) -> None:
        """Writes a checkpoint of a table's log, and removes expired entries.

        Raises:
            OutcomeUnknownError: Spark has failed. Repeat.
        """
        with _spark_errors(uri):
            DeltaJvm(self._session()).checkpoint(spark_path(uri))

    def _session(self) -> SparkSession:
        return SparkSession(self._spark.sparkContext, self._spark._jsparkSession.cloneSession())


class SparkTransaction:
    """The state of a table when it was opened, and the one transaction that can follow.

    See :class:`spark_jobs.publication.transactions.Transaction`.
    """

    def __init__(self, session: SparkSession, transaction: JvmTransaction, table: OpenTable, app: AppId) -> None:
        self._session, self._transaction, self._app = session, transaction, app
        self.table = table

    def has_read_what_is_there(self) -> bool:
        """Returns True if Delta has read the present log. Delta reads each version once, and the log may have been replaced.

        Raises:
            OutcomeUnknownError: The storage fails.
        """
        with _spark_errors(self.table.facts.uri):
            written_ms, size_bytes = self._transaction.newest_commit
            found = self._transaction.stored_commit()
            same_table = self._transaction.table_id == self.table.facts.table_id
        return found is not None and same_table and written_ms == found[0] and size_bytes in (None, found[1])

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Advances the app id's version and adds nothing."""
        with _spark_errors(self.table.facts.uri):
            self._transaction.commit((), version, commit_info, replace=False)

    def publish(
        self,
        cut: SinkCut,
        lines: Iterable[Mapping[str, Any]],
        version: CheckpointId,
        commit_info: Mapping[str, Any],
        *,
        replace: bool,
    ) -> None:
        """Implements the protocol. A MERGE reads the rows again: rows of other writers are merged with, or are a conflict."""
        with _spark_errors(cut.table):
            if cut.merge is None:
                self._transaction.commit((line["add"] for line in lines), version, commit_info, replace=replace)
            else:
                self._make_repeatable(version, commit_info)
                self._merge(cut, cut.merge, lines, replace=replace)

    def _make_repeatable(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Makes Delta skip every statement of this session if its table already has ``version``."""
        for key, value in {
            _TXN_APP: self._app,
            _TXN_VERSION: str(version),
            _USER_METADATA: canonical(dict(commit_info)).decode(),
        }.items():
            self._session.conf.set(key, value)

    def _merge(self, cut: SinkCut, rule: MergeCut, lines: Iterable[Mapping[str, Any]], *, replace: bool) -> None:
        table = cut.table
        for key, value in rule.settings.items():  # otherwise another time zone would change the result
            self._session.conf.set(key, value)
        merge = merge_of(self._session, cut.mode, rule, lines, cut.staged_for, self.table.facts.shape, replace=replace)
        tombstones = None
        if rule.tombstones is not None:
            path = spark_path(rule.tombstones)
            with step(Step.BURY_KEYS):
                merge.bury(DeltaTable.forPath(self._session, path))
            tombstones = self._session.read.format("delta").load(path)
        if not open_table(table).differs_only_in_rows(self.table):
            raise ConflictError(
                f"Another writer has changed table {table} since it was read.",
                safe="Nothing was merged.",
                remedy="Repeat: the table is read again.",
                table=table,
            )
        merge.merge_into(DeltaTable.forPath(self._session, spark_path(table)), tombstones)


def merge_of(
    session: SparkSession,
    mode: SinkMode,
    rule: MergeCut,
    lines: Iterable[Mapping[str, Any]],
    staged_for: Sequence[TableShape],
    shape: TableShape,
    *,
    replace: bool,
) -> KeyedMerge:
    """Returns the merge of staged files into a table.

    Args:
        session: A session with the settings of the rule.
        mode: Mode of the sink.
        rule: Merge rule of the sink.
        lines: ``{"add": …, "batch": …}`` for each file.
        staged_for: Shapes of the table that the files were staged for.
        shape: Present shape of the table.
        replace: True if the present rows of the table are removed.
    """
    names = renaming(staged_for or (shape,), shape, rule.compared).columns  # without rows there is no shape
    _, metadata, protocol = DeltaJvm(session).snapshot(spark_path(rule.staged_in))
    rows = staged_frame(session, rule.staged_in, metadata, protocol, lines, label="batch")
    schema = StructType.fromJson(json.loads(shape.table_schema))
    return keyed_merge(mode, rule, rows, column_of("batch", metadata), replace, schema, names)


def _begin(session: SparkSession, uri: str, app: AppId) -> SparkTransaction:
    with _spark_errors(uri):
        transaction = DeltaJvm(session).transaction(spark_path(uri), app)
    if transaction.read_version < 0:
        open_table(uri)  # raises an error if there is no table
        raise ConflictError(
            f"Table {uri} was dropped and created again since it was read.",
            safe="Nothing was committed.",
            remedy="Repeat: the table is read again.",
            table=uri,
        )
    return SparkTransaction(session, transaction, open_table(uri, transaction.read_version), app)


_ABOUT_ROWS = ("22", "23")
"""The classes of SQLSTATE for data exceptions and violated constraints."""


@contextmanager
def _spark_errors(uri: str) -> Iterator[None]:
    """Translates exceptions of Spark into errors of this package."""
    try:
        yield
    except DeltaConcurrentModificationException as error:
        raise ConflictError(
            f"Another writer has changed table {uri} since it was read: {first_line(error)}",
            safe="Nothing was committed.",
            remedy="Repeat: the table is read again.",
            table=uri,
        ) from error
    except (PySparkException, Py4JError) as error:
        reason = _reason(error)
        if isinstance(error, AnalysisException) or _is_about_rows(error):
            raise UnsupportedTableError(
                f"Table {uri} does not accept the staged rows: {reason}",
                exists="The rows stay staged.",
                safe="Nothing was committed.",
                remedy=f"Undo the change of the table, or drop the constraint, and publish again; or {BEGIN_ANEW}.",
                table=uri,
            ) from error
        raise OutcomeUnknownError(
            f"It is unknown whether table {uri} was changed: {reason}",
            remedy="Repeat: the table is read first.",
            table=uri,
            cause=str(error)[:2000],
        ) from error


def _reason(error: Exception) -> str:
    with suppress(Py4JError):  # the JVM may have ended
        return java_message(error).splitlines()[0]
    return first_line(error)


def _is_about_rows(error: Exception) -> bool:
    """Returns True if a value or a constraint made the statement fail. Then it failed before its commit, and always will."""
    with suppress(Py4JError):
        return any(_sql_state(java).startswith(_ABOUT_ROWS) for java in java_causes(error))
    return False


def _sql_state(java: Any) -> str:
    try:
        return str(java.getSqlState())
    except (Py4JError, TypeError):
        return ""  # an exception without SQLSTATE
