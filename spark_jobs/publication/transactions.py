"""Delta transactions into public tables: their contract, and the publishers that make them."""

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from spark_jobs.background import run_in_background
from spark_jobs.protocol.documents import Publisher, SinkCut, SinkMode
from spark_jobs.protocol.errors import SparkRequiredError, StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.deleted_keys import add_checksums, fold, is_due
from spark_jobs.publication.delta_rs import DeltaRsKeeper, OpenTable, open_table, rows_by_file
from spark_jobs.storage.table_uris import table_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.publication.spark import SparkPublisher

_LOG = logging.getLogger(__name__)
_SPARK_MODULE = "spark_jobs.publication.spark"
SMALL_FILES = 100_000
"""The number of files of a table up to which delta-rs writes a checkpoint of its log in half a second."""


class Transaction(Protocol):
    """The state of a table when the transaction was begun, and the one Delta transaction that can follow.

    A commit succeeds only if the app id's version, the schema and the protocol have not changed since then. Rows
    that others have appended do not matter, except for a replacement, for which every other commit is a conflict. A successful call is
    durable on return.
    """

    @property
    def table(self) -> OpenTable:
        """Returns the table at the version that the transaction is conditional on."""
        ...

    def publish(
        self,
        cut: SinkCut,
        lines: Iterable[Mapping[str, Any]],
        version: CheckpointId,
        commit_info: Mapping[str, Any],
        *,
        replace: bool,
    ) -> None:
        """Makes staged files public.

        Args:
            cut: Cut that the files are staged for.
            lines: ``{"add": …, "batch": …}`` for each file. May be empty; the version still advances.
            version: New version of the app id.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: True if the present rows of the table are removed.

        Raises:
            ConflictError: Another writer was faster. Nothing was committed.
            OutcomeUnknownError: The rows may be public. Read the version of a newly opened table.
            StorageError: The storage failed, probably before the commit. Read the version here, too.
            UnsupportedTableError: The table does not accept the rows. Nothing was committed.
        """
        ...

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Advances the app id's version without rows. The errors are those of :meth:`publish`."""
        ...


class DeltaRsTransaction:
    """The state of a table when it was opened, and the one transaction that can follow.

    See :class:`Transaction`.
    """

    def __init__(self, table: OpenTable, app: AppId) -> None:
        self.table, self._app = table, app

    def publish(
        self,
        cut: SinkCut,
        lines: Iterable[Mapping[str, Any]],
        version: CheckpointId,
        commit_info: Mapping[str, Any],
        *,
        replace: bool,
    ) -> None:
        """Implements the protocol. A merge reads rows of the table, so any commit since it was opened is a conflict."""
        if cut.merge is None:
            self.table.commit((line["add"] for line in lines), self._app, version, commit_info, replace=replace)
            return
        from spark_jobs.publication.delta_rs_merge import publish_merge  # it loads pyarrow, which only a merge needs

        publish_merge(self.table, cut, list(lines), self._app, version, commit_info)

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        self.table.commit((), self._app, version, commit_info)


class Publishers:
    """The publishers of this process.

    Args:
        spark: Creates or finds a Spark session. Called once if a sink needs it. None: there is no Spark.
        in_driver: True in a driver. Its session runs anyway, and writes log checkpoints of large tables in the background.
    """

    def __init__(self, spark: "Callable[[], SparkSession] | None" = None, *, in_driver: bool = False) -> None:
        self._spark, self._in_driver = spark, in_driver
        self._spark_publisher: SparkPublisher | None = None
        self._checkpointing: dict[str, Future[None]] = {}
        self._one_at_a_time = Lock()

    def require(self, publisher: Publisher, what: str) -> None:
        """Refuses a publisher that this process does not have.

        Raises:
            SparkRequiredError: There is no Spark. The error names ``what``.
        """
        if publisher is Publisher.SPARK and self._spark is None:
            raise spark_required(what)

    def begin(self, publisher: Publisher, uri: str, app: AppId) -> Transaction:
        """Opens a table for one transaction.

        Raises:
            SparkRequiredError: The publisher is Spark, but there is none.
            NotFoundError: There is no table.
            UnsupportedTableError: delta-rs cannot read it.
            StorageError: The storage fails.
        """
        if publisher is Publisher.DELTA_RS:
            return DeltaRsTransaction(open_table(uri), app)
        return self._by_spark(uri).begin(uri, app)

    def rows_by_file(self, publisher: Publisher, uri: str) -> dict[str, int]:
        """Returns the rows of each data file of a table. Reads the list of all its files.

        Raises:
            SparkRequiredError: The publisher is Spark, but there is none.
            NotFoundError: There is no table.
            StorageError: The storage fails.
        """
        return rows_by_file(uri) if publisher is Publisher.DELTA_RS else self._by_spark(uri).rows_by_file(uri)

    def count_breaking(self, uri: str, lines: Iterable[Mapping[str, Any]], conditions: Mapping[str, str]) -> dict[str, int]:
        """Returns the number of rows in staged files of a table that break each condition. Reads those files.

        Args:
            uri: URI of the table.
            lines: The staged files, as for :meth:`Transaction.publish`.
            conditions: SQL conditions by any key. A condition that is null is broken.

        Raises:
            SparkRequiredError: There is no Spark.
            UnsupportedTableError: A condition cannot be evaluated on the rows.
            OutcomeUnknownError: Spark has failed. Repeat.
        """
        return self._by_spark(uri).count_breaking(uri, lines, conditions)

    def keep_log_short(self, table: OpenTable) -> None:
        """Writes a checkpoint of a table's log if one is due, so that readers have few commits to read.

        This is not part of a publication: call it when all tables are public. Failures are only logged. A driver writes the checkpoint in
        the background. Two kinds of tables need Spark for it: large ones, where it takes seconds and reads the list of all files, and
        those that only Spark can append to. A process that has not started Spark leaves them to others.
        """
        uri = table.facts.uri
        if not table.needs_checkpoint():
            return
        if not self._in_driver:
            self._checkpoint(table)
        elif uri not in self._checkpointing or self._checkpointing[uri].done():
            self._checkpointing[uri] = run_in_background(partial(self._checkpoint, table))

    def keep_deleted_keys(self, cut: SinkCut, reached: CheckpointId | None) -> None:
        """Folds the table of a sink's deleted keys if that is due, and writes the checksums of its new files.

        This is not part of a publication, so failures are only logged.

        Args:
            cut: The sink's cut.
            reached: Newest public checkpoint of the sink.
        """
        uri = cut.merge.tombstones if cut.merge else None
        if uri is None:
            return
        try:
            files = table_files(uri)
            if is_due(files):
                keeper = DeltaRsKeeper() if not open_table(uri).obstacles(Publisher.DELTA_RS) else self._by_spark(uri)
                fold(files, uri, cut.app, reached, keeper)
            add_checksums(files)
        except (StreamPipelineError, OSError) as error:
            _LOG.warning("the deleted keys in table %s are not folded, or have no checksums: %s", uri, error)

    def finish(self) -> None:
        """Waits for log checkpoints that are being written in the background. Call it while Spark still runs."""
        wait(list(self._checkpointing.values()))

    def _checkpoint(self, table: OpenTable) -> None:
        uri = table.facts.uri
        try:
            with self._one_at_a_time:
                if table.file_count <= SMALL_FILES and not table.obstacles(Publisher.DELTA_RS, SinkMode.APPEND):
                    table.write_checkpoint()
                elif self._in_driver or self._spark_publisher is not None:
                    self._checkpoint_by_spark(uri)
        except (StreamPipelineError, OSError) as error:
            _LOG.warning("no checkpoint of the log of table %s: %s", uri, error)

    def _checkpoint_by_spark(self, uri: str) -> None:
        self._by_spark(uri).checkpoint(uri)

    def _by_spark(self, uri: str) -> "SparkPublisher":
        if self._spark is None:
            raise spark_required(f"Table {uri}")
        if self._spark_publisher is None:
            # Imported by name, so that an Airflow worker that publishes never loads Spark.
            spark_publisher: SparkPublisher = importlib.import_module(_SPARK_MODULE).SparkPublisher(self._spark())
            self._spark_publisher = spark_publisher
        return self._spark_publisher


def spark_required(what: str) -> SparkRequiredError:
    """Returns the error for ``what`` if there is no Spark."""
    return SparkRequiredError(
        f"{what} is published by Spark: its table or its mode needs a JVM.",
        safe="Nothing was written to any table.",
        remedy="Publish with Spark: spark-jobs publish starts one, and a driver has one.",
    )
