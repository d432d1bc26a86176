"""Delta transactions into public tables, whoever makes them: what they promise, and where each kind comes from."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spark_jobs.protocol.documents import Publisher, SinkCut
from spark_jobs.protocol.errors import SparkRequiredError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.delta_rs import DeltaRsTransaction, OpenTable, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_MODULE = "spark_jobs.publication.spark"


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


Begin = Callable[[str, AppId], Transaction]
"""Opens a table, named by its URI, for one transaction of an app id."""


class Publishers:
    """The publishers that this process has.

    Args:
        spark: Makes or finds a Spark session; called once, if a sink needs it. None: there is no Spark here.
    """

    def __init__(self, spark: "Callable[[], SparkSession] | None" = None) -> None:
        self._spark = spark
        self._begin_by_spark: Begin | None = None

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
        return self._by_spark(uri)(uri, app)

    def _by_spark(self, uri: str) -> Begin:
        if self._spark is None:
            raise spark_required(f"Table {uri}")
        if self._begin_by_spark is None:
            # By name, so that an Airflow worker that publishes never loads Spark.
            begin: Begin = importlib.import_module(_SPARK_MODULE).SparkPublisher(self._spark()).begin
            self._begin_by_spark = begin
        return self._begin_by_spark


def spark_required(what: str) -> SparkRequiredError:
    """The refusal of ``what`` where there is no Spark."""
    return SparkRequiredError(
        f"{what} is published by Spark: its table, or its mode, is beyond what can be done without a JVM.",
        safe="Nothing was written to any table.",
        remedy="Publish where Spark is: spark-jobs publish starts one, a driver has one.",
    )
