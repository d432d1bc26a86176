"""Delta transactions into public tables, whoever makes them: what they promise, and where each kind comes from."""

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from spark_jobs.protocol.documents import Publisher, SinkCut
from spark_jobs.protocol.errors import SparkRequiredError, StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.deleted_keys import fold, is_due
from spark_jobs.publication.delta_rs import DeltaRsKeeper, DeltaRsTransaction, OpenTable, open_table, rows_by_file
from spark_jobs.storage.table_uris import table_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.publication.spark import SparkPublisher

_LOG = logging.getLogger(__name__)
_SPARK_MODULE = "spark_jobs.publication.spark"
SMALL_FILES = 100_000
"""A checkpoint of the log of a table with so many files takes delta-rs half a second."""


class Transaction(Protocol):
    """A table as it was when the transaction was begun, and the one Delta transaction that can follow.

    Both methods are conditional: they succeed only if neither the app id's version nor the schema nor the protocol has changed
    since. Rows that somebody else has appended do not matter, except to a replacement, to which every other commit is a conflict.
    What succeeds is durable on return.
    """

    @property
    def table(self) -> OpenTable:
        """The table, at the version that the transaction is conditional on."""
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
            cut: What they are staged for.
            lines: ``{"add": …, "batch": …}`` for each file. May be none: the version advances all the same.
            version: The app id's new version.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Whether the rows that the table has go.

        Raises:
            ConflictError: Somebody else was faster; nothing of this was committed.
            OutcomeUnknownError: It may be public. Read the version of a newly opened table.
            StorageError: The storage failed, probably before the commit. Read back as well.
            UnsupportedTableError: The table does not take the rows. Nothing was committed.
        """
        ...

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Advances the app id's version and adds nothing; errors as :meth:`publish`."""
        ...


class Publishers:
    """The publishers that this process has.

    Args:
        spark: Makes or finds a Spark session; called once, if a sink needs it. None: there is no Spark here.
        at_work: Whether that session is at work anyway. Then it also writes the checkpoints of large tables' logs.
    """

    def __init__(self, spark: "Callable[[], SparkSession] | None" = None, *, at_work: bool = False) -> None:
        self._spark, self._at_work = spark, at_work
        self._spark_publisher: SparkPublisher | None = None
        self._checkpointing: Thread | None = None

    def require(self, publisher: Publisher, what: str) -> None:
        """Refuses what needs Spark where there is none.

        Raises:
            SparkRequiredError: Names ``what``.
        """
        if publisher is Publisher.SPARK and self._spark is None:
            raise spark_required(what)

    def begin(self, publisher: Publisher, uri: str, app: AppId) -> Transaction:
        """Opens a table for one transaction.

        Raises:
            SparkRequiredError: It needs Spark, and there is none.
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
            SparkRequiredError: It needs Spark, and there is none.
            NotFoundError: There is no table.
            StorageError: The storage fails.
        """
        return rows_by_file(uri) if publisher is Publisher.DELTA_RS else self._by_spark(uri).rows_by_file(uri)

    def count_breaking(self, uri: str, lines: Iterable[Mapping[str, Any]], conditions: Mapping[str, str]) -> dict[str, int]:
        """Returns by condition how many of the rows in staged files of a table it does not hold for. Reads those files.

        Raises:
            SparkRequiredError: There is no Spark.
            UnsupportedTableError: A condition cannot be evaluated on the rows.
            OutcomeUnknownError: Spark has failed; repeat.
        """
        return self._by_spark(uri).count_breaking(uri, lines, conditions)

    def keep_log_short(self, table: OpenTable) -> None:
        """Writes a checkpoint of a table's log where one is due, so that its readers have few commits to read.

        A small table's is written at once. A large one's takes seconds and the list of all its files: it is written by Spark, in the
        background, and left to others where no Spark is at work. It is not part of a publication, so failures are only logged.
        """
        if not table.needs_checkpoint():
            return
        if table.file_count <= SMALL_FILES:
            try:
                table.write_checkpoint()
            except StreamPipelineError as error:
                _LOG.warning("no checkpoint of the log of table %s: %s", table.facts.uri, error)
        elif self._at_work and (self._checkpointing is None or not self._checkpointing.is_alive()):
            work, uri = self._checkpoint_by_spark, table.facts.uri
            self._checkpointing = Thread(target=work, args=(uri,), name="table-log-checkpoint", daemon=True)
            self._checkpointing.start()

    def keep_deleted_keys_small(self, cut: SinkCut, reached: CheckpointId | None) -> None:
        """Folds the table of a sink's deleted keys where it is due. It is not part of a publication, so failures are only logged.

        Args:
            cut: The sink's cut.
            reached: The newest checkpoint that is public in the sink.
        """
        uri = cut.merge.tombstones if cut.merge else None
        if uri is None:
            return
        try:
            files = table_files(uri)
            if is_due(files):
                keeper = DeltaRsKeeper() if not open_table(uri).obstacles(Publisher.DELTA_RS) else self._by_spark(uri)
                fold(files, uri, cut.app, reached, keeper)
        except (StreamPipelineError, OSError) as error:
            _LOG.warning("the deleted keys in table %s are not folded: %s", uri, error)

    def finish(self) -> None:
        """Waits for what goes on in the background; Spark is needed until then."""
        if self._checkpointing is not None:
            self._checkpointing.join()

    def _checkpoint_by_spark(self, uri: str) -> None:
        try:
            self._by_spark(uri).checkpoint(uri)
        except (StreamPipelineError, OSError) as error:
            _LOG.warning("no checkpoint of the log of table %s: %s", uri, error)

    def _by_spark(self, uri: str) -> "SparkPublisher":
        if self._spark is None:
            raise spark_required(f"Table {uri}")
        if self._spark_publisher is None:
            # By name, so that an Airflow worker that publishes never loads Spark.
            made: SparkPublisher = importlib.import_module(_SPARK_MODULE).SparkPublisher(self._spark())
            self._spark_publisher = made
        return self._spark_publisher


def spark_required(what: str) -> SparkRequiredError:
    """The refusal of ``what`` where there is no Spark."""
    return SparkRequiredError(
        f"{what} is published by Spark: its table, or its mode, is beyond what can be done without a JVM.",
        safe="Nothing was written to any table.",
        remedy="Publish where Spark is: spark-jobs publish starts one, a driver has one.",
    )
