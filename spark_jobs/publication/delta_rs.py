"""One Delta table without a JVM: its present state, and one conditional Delta transaction that publishes into it.

The table's state comes only from its log (:mod:`spark_jobs.publication.table_log`). The version of an app id is read and the
transaction is committed on *one* :class:`OpenTable`. An append creates the log's next version. If another writer has created that
version, the new commits are read. The append is repeated only if the app id's version, the schema and the protocol have not changed since
the table was opened. This compare-and-swap is the base of the design.

delta-rs makes the one transaction that needs the list of files, a replacement, and writes checkpoints of the log.
"""

import errno
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from importlib.metadata import version as installed_version
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, IncarnationId, PipelineUuid, incarnation_of
from spark_jobs.protocol.options import interval_ms
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.publication.append_commit import append_commit, commit_of
from spark_jobs.publication.features import candidates, merge_obstacles, obstacles, unreadable_vectors
from spark_jobs.publication.fitting import shape
from spark_jobs.publication.table_log import TableLog, TableState
from spark_jobs.storage.object_store_kinds import is_in_object_store
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.settings_by_bucket import settings_for
from spark_jobs.storage.table_uris import table_files, uri_of

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_KINDS: dict[int, type[StorageError]] = {
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENOENT: NotFoundError,
}
ENGINE = f"airflow-provider-spark-jobs/{installed_version('airflow-provider-spark-jobs')}"
"""The name of the writer in the commits of this runtime."""
_TRIES = 15
_LOGS_KEPT = 256
_CHECKPOINT_INTERVAL = 100
"""Number of commits between two checkpoints of a log, if the table does not set it. delta-rs has the same default."""


_PROTECTED_LOG = "checkpointProtection"
"""The feature of tables whose log has entries that only Spark knows how to remove."""
LARGE_FILE_BYTES = 64 * 2**20
"""Files of deleted keys of at least this size are not compacted again. This limits the bytes that a compaction rewrites."""
_NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_BREAKING_ROWS = re.compile(r"Invalid data found: (\d+) rows failed validation check")
_FILES_KEPT_BY_DEFAULT = timedelta(weeks=1)


STAGED, TABLE = "staged", "published"
"""The names of source and table in a ``MERGE``."""


@dataclass(frozen=True)
class MergeStatement:
    """A ``MERGE`` for delta-rs."""

    source: Any
    """An Arrow table with at most one row per key."""
    same: str
    """The condition that matches a row of the source with a row of the table."""
    delete_if: str | None
    """The condition for deleting the matched row. None: never."""
    update_if: str | None
    """The condition for replacing the matched row. None: never."""
    insert_if: str
    """The condition for adding a row without a match."""
    values: Mapping[str, str]
    """The expression that is written, by column."""


@dataclass(frozen=True)
class TableFacts:
    """The properties of a table. They are recorded at the cut and compared before publication."""

    uri: str
    table_id: str
    version: int
    shape: TableShape
    partition_by: tuple[str, ...]


def data_files(uri: str) -> list[tuple[str, int]]:
    """Returns the data files of the table at ``uri``: their paths below the table, and their sizes in bytes.

    Raises:
        NotFoundError: There is no table.
        StorageError: The storage fails, or delta-rs cannot read the table.
    """
    with delta_errors(uri, reading=True):
        actions = delta_table(uri).get_add_actions()
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return [(unquote(path), int(size_bytes)) for path, size_bytes in zip(paths, sizes, strict=True)]


def rows_by_file(uri: str) -> dict[str, int]:
    """Returns the number of rows of each data file of the table at ``uri``, including rows that were deleted later.

    Raises:
        NotFoundError: There is no table.
        StorageError: The storage fails, or delta-rs cannot read the table.
    """
    with delta_errors(uri, reading=True):
        actions = delta_table(uri).get_add_actions()
    paths, rows = actions.column("path").to_pylist(), actions.column("num_records").to_pylist()
    return {unquote(path): int(count or 1) for path, count in zip(paths, rows, strict=True)}


class OpenTable:
    """The state of a Delta table when it was opened.

    Raises:
        UnsupportedTableError: Its schema has an unknown type.
    """

    def __init__(self, uri: str, log: TableLog, state: TableState) -> None:
        self._uri, self._log, self._state = uri, log, state
        with delta_errors(uri, reading=True):
            self._fields: list[dict[str, Any]] = json.loads(Schema.from_json(state.schema_text).to_json())["fields"]
        self.facts = TableFacts(
            uri=uri,
            table_id=state.table_id,
            version=state.version,
            shape=shape(state.schema_text, state.partition_by, state.configuration, state.features),
            partition_by=state.partition_by,
        )

    def transaction_version(self, app: AppId) -> CheckpointId | None:
        """Returns the newest checkpoint that ``app`` has published, or None."""
        return self._state.apps.get(app)

    def incarnations(self, pipeline: PipelineUuid) -> list[IncarnationId]:
        """Returns the incarnations of a pipeline that have published into the table, sorted. The table never forgets one."""
        return sorted({incarnation for app in self._state.apps if (incarnation := incarnation_of(app, pipeline))})

    def differs_only_in_rows(self, other: "OpenTable") -> bool:
        """Returns True if two states of a table differ only in their rows."""
        return self._state.differs_only_in_rows(other._state)

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns."""
        return [field["name"] for field in self._fields]

    def obstacles(self, publisher: Publisher, mode: SinkMode = SinkMode.COMPLETE) -> list[str]:
        """Returns the features of this table that ``publisher`` cannot commit with or that break exactly-once publication.

        Args:
            publisher: Publisher that commits.
            mode: Mode of the sink. An append only adds files. A merge also writes rows. Every other commit adds and removes files.
        """
        identity = any(name.startswith("delta.identity.") for field in self._fields for name in field["metadata"])
        state, appends = self._state, mode is SinkMode.APPEND
        found = obstacles(
            publisher, state.features, state.writer_version, state.configuration, identity=identity, appends=appends
        )
        if publisher is Publisher.DELTA_RS and mode.has_keys:
            found += merge_obstacles(self._fields, state.configuration)
            found += unreadable_vectors(self._uri, state.features)
        return found

    def allows_replacement(self) -> bool:
        """Returns True if files may be removed from this table."""
        return self._state.configuration.get("delta.appendOnly", "false").lower() != "true"

    @property
    def keeps_deleted_files(self) -> timedelta:
        """Returns the age at which a VACUUM deletes a file that the table does not name."""
        given = self._state.configuration.get("delta.deletedFileRetentionDuration", "")
        with suppress(RejectedError):
            return timedelta(milliseconds=interval_ms(_no_interval, "retention", given.lower().removeprefix("interval ")))
        return _FILES_KEPT_BY_DEFAULT

    def commits(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yields all actions of the commits that the log still has, oldest first.

        Raises:
            StorageError: The storage fails, or the log cannot be read.
        """
        return self._log.commits()

    @property
    def file_count(self) -> int:
        """Returns the approximate number of files of the table."""
        return self._log.file_count

    def needs_checkpoint(self) -> bool:
        """Returns True if so many commits follow the log's newest checkpoint that a new one should be written."""
        interval = self._state.configuration.get("delta.checkpointInterval", "")
        return self._log.commits_since_checkpoint >= (int(interval) if interval.isdecimal() else _CHECKPOINT_INTERVAL)

    def write_checkpoint(self) -> None:
        """Writes a checkpoint of the log and removes expired entries. Loads the list of all files of the table.

        Raises:
            StorageError: The storage fails, or delta-rs cannot read the table.
        """
        with delta_errors(self._uri, reading=True):
            table = delta_table(self._uri)
            table.create_checkpoint()
            cleans = self._state.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true"
            if cleans and _PROTECTED_LOG not in self._state.features:
                table.cleanup_metadata()

    def commit(
        self,
        adds: Iterable[Mapping[str, Any]],
        app: AppId,
        version: CheckpointId,
        commit_info: Mapping[str, Any],
        *,
        replace: bool = False,
    ) -> None:
        """Makes ``adds`` public in one Delta transaction with ``SetTransaction(app, version)``; durable on return.

        The commit succeeds only if ``app``'s version, the schema and the protocol have not changed since this table was opened. Rows that
        others have appended do not matter. To read the table or to commit again, open it again.

        Args:
            adds: Delta's ``add`` actions. May be empty; the version still advances.
            app: App id whose version advances.
            version: New version of the app id.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Remove all present files in the same transaction. Then *any* commit since the table was opened is a conflict.

        Raises:
            ConflictError: Another writer was faster. Nothing was committed.
            UnsupportedTableError: The table needs a commit that is not possible without a JVM. Nothing was committed.
            OutcomeUnknownError: The rows may be public. Read :meth:`transaction_version` of a newly opened table.
            StorageError: The storage failed, probably before the commit. Read back in this case, too.
        """
        refuse_unsupported(self, Publisher.DELTA_RS, SinkMode.COMPLETE if replace else SinkMode.APPEND)
        user_metadata = canonical(dict(commit_info)).decode()
        advance = {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}
        if replace:
            self._replace(adds, advance, user_metadata)
        else:
            self._append(adds, advance, user_metadata)

    def set_property(self, name: str, value: str) -> None:
        """Sets a property of the newest version of the table in one Delta transaction, unless it has the value. Durable on return.

        Delta fails the transactions of other writers that have begun earlier, also their appends.

        Raises:
            ConflictError: The table was replaced, or other writers were faster at each try. Nothing was committed.
            UnsupportedTableError: The table needs a commit that is not possible without a JVM. Nothing was committed.
            OutcomeUnknownError: The property may be set. Repeat.
            StorageError: The storage failed.
        """
        if found := self.obstacles(Publisher.DELTA_RS, SinkMode.APPEND):
            raise UnsupportedTableError(
                f"Table {self._uri} has {', '.join(found)}, so only Spark can set a property of it.",
                safe="Nothing was committed.",
                remedy="Set no property, or set it with Spark: ALTER TABLE … SET TBLPROPERTIES.",
                table=self._uri,
                unsupported=found,
            )
        info = _commit_info("SET TBLPROPERTIES", {"properties": json.dumps({name: value})}, int(time.time() * 1000))

        def commit(after: TableState) -> bytes | None:
            if after.configuration.get(name) == value:
                return None
            metadata = {**after.metadata, "configuration": {**after.configuration, name: value}}
            return commit_of(after, info, [{"metaData": metadata}])

        self._create_next(commit)

    def _append(self, adds: Iterable[Mapping[str, Any]], advance: Mapping[str, Any], user_metadata: str) -> None:
        parameters = {"mode": "Append", "partitionBy": json.dumps(list(self.facts.partition_by))}
        info = _commit_info("WRITE", parameters, advance["lastUpdated"]) | {"userMetadata": user_metadata}
        app, added = AppId(advance["appId"]), list(adds)

        def commit(after: TableState) -> bytes:
            if after.apps.get(app) != self._state.apps.get(app):
                raise self._overtaken()
            return append_commit(after, info, advance, added)

        self._create_next(commit)

    def _create_next(self, commit: Callable[[TableState], bytes | None]) -> None:
        """Creates the log's next version. Repeats that if other writers have created it, and have changed only rows.

        Args:
            commit: Returns the version that follows a state of the table. None: nothing is to be committed.

        Raises:
            ConflictError: Another writer was faster. Nothing was committed.
        """
        after = self._state
        for _ in range(_TRIES):
            version = commit(after)
            if version is None:
                return None
            if not after.differs_only_in_rows(self._state):
                break
            try:
                return self._log.create(after, version)
            except AlreadyExistsError:
                after = self._log.newest()
        raise self._overtaken()

    def _overtaken(self) -> ConflictError:
        return _changed(self._uri, "another commit was faster")

    def merge(self, statement: MergeStatement, app: AppId, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Merges rows into the table in one Delta transaction with ``SetTransaction(app, version)``. Durable on return.

        Any commit since the table was opened is a conflict. The other errors are those of :meth:`commit`.

        Args:
            statement: The rows and the merge.
            app: App id whose version advances.
            version: New version of the app id.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
        """
        refuse_unsupported(self, Publisher.DELTA_RS, SinkMode.UPSERT)
        advance = Transaction(app, version, int(time.time() * 1000))
        table = self._pinned()
        merge = table.merge(
            statement.source,
            statement.same,
            source_alias=STAGED,
            target_alias=TABLE,
            streamed_exec=False,  # otherwise delta-rs reads every file of the table
            commit_properties=_commit_properties(advance, canonical(dict(commit_info)).decode()),
            post_commithook_properties=_NOTHING_AFTERWARDS,
        )
        if statement.delete_if is not None:
            merge = merge.when_matched_delete(statement.delete_if)
        if statement.update_if is not None:
            merge = merge.when_matched_update(dict(statement.values), statement.update_if)
        merge = merge.when_not_matched_insert(dict(statement.values), statement.insert_if)
        with delta_errors(self._uri, reading=False):
            merge.execute()
        if table.version() == self._state.version:  # delta-rs commits nothing if no row changes
            self.commit((), app, version, commit_info)
        else:
            self._log.sync_written(self._state.version + 1)

    def _replace(self, adds: Iterable[Mapping[str, Any]], advance: Mapping[str, Any], user_metadata: str) -> None:
        actions: list[AddAction | RemoveAction] = [_add_action(add) for add in adds]
        table = self._pinned()
        with delta_errors(self._uri, reading=False):
            table.create_write_transaction(
                actions,
                mode="overwrite",
                schema=table.schema(),
                partition_by=list(self.facts.partition_by),
                commit_properties=_commit_properties(
                    Transaction(advance["appId"], advance["version"], advance["lastUpdated"]), user_metadata
                ),
                post_commithook_properties=_NOTHING_AFTERWARDS,
            )

    def _pinned(self) -> DeltaTable:
        """Returns the table with its files, at the version of this state."""
        with delta_errors(self._uri, reading=True):
            try:
                table = delta_table(self._uri, self._state.version)
            except DeltaError as error:
                raise _changed(self._uri, "the version that was read is missing") from error
        if str(table.metadata().id) != self._state.table_id:
            raise _changed(self._uri, "it was replaced by another table")
        return table


class DeltaRsKeeper:
    """Keeps a table of deleted keys small. See :class:`spark_jobs.publication.deleted_keys.TableKeeper`."""

    def compact(self, uri: str) -> None:
        """Merges small files.

        Raises:
            ConflictError: Another writer was faster.
            StorageError: The storage fails.
        """
        with delta_errors(uri, reading=True):
            table = delta_table(uri)
        with delta_errors(uri, reading=False):
            table.optimize.compact(target_size=LARGE_FILE_BYTES, post_commithook_properties=_NOTHING_AFTERWARDS)

    def checkpoint(self, uri: str) -> None:
        """Writes a checkpoint of the log.

        Raises:
            StorageError: The storage fails.
        """
        open_table(uri).write_checkpoint()


def open_table(uri: str, version: int | None = None) -> OpenTable:
    """Opens a table at its newest Delta version or at an older one.

    The process caches the logs that it has read. Opening a table again only reads new commits.

    Raises:
        NotFoundError: There is no table, or the version does not exist any more.
        UnsupportedTableError: Its address or its schema needs a JVM.
        StorageError: The storage fails.
    """
    log = log_of(uri)
    return OpenTable(uri, log, log.newest() if version is None else log.at(version))


def log_of(uri: str) -> TableLog:
    """Returns the log of a table: one object per process, which caches what it has read. Newer settings of its store give a new one."""
    return cached_log(uri, settings_for(uri) if is_in_object_store(uri) else None)


@lru_cache(maxsize=_LOGS_KEPT)
def cached_log(uri: str, store_settings: ObjectStoreSettings | None) -> TableLog:
    """Returns the log of a table in a store with these settings; None if it is in no object store."""
    return TableLog(table_files(uri).below(DELTA_LOG), uri)


def delta_table(uri: str, version: int | None = None) -> DeltaTable:
    """Opens a table with delta-rs, which loads the list of all its files."""
    address = uri_of(table_files(uri))
    options = settings_for(uri).for_delta_rs() if is_in_object_store(uri) else None
    return DeltaTable(address, version=version, storage_options=options)


def choose_publisher(table: OpenTable, mode: SinkMode) -> Publisher:
    """Returns the publisher for a table: delta-rs wherever possible.

    Raises:
        UnsupportedTableError: No publisher can publish into it exactly once. The error names the features that prevent it.
    """
    for publisher in candidates(mode):
        if not table.obstacles(publisher, mode):
            return publisher
    refuse_unsupported(table, candidates(mode)[-1], mode)
    raise AssertionError("unreachable: the last candidate was refused")


def publisher_now(table: OpenTable, recorded: Publisher, mode: SinkMode) -> Publisher:
    """Returns the publisher for a table that may have been changed since its publisher was recorded.

    Raises:
        UnsupportedTableError: No publisher can; see :func:`choose_publisher`.
    """
    return choose_publisher(table, mode) if table.obstacles(recorded, mode) else recorded


def check_publishable(uri: str, mode: SinkMode = SinkMode.APPEND) -> tuple[TableFacts, Publisher]:
    """Refuses a table that cannot be published into exactly once.

    Returns:
        The facts of the table, and its publisher.

    Raises:
        UnsupportedTableError: A feature of the table prevents it. The error names it.
        NotFoundError: There is no table.
        StorageError: The storage fails.
    """
    table = open_table(uri)
    if mode.removes_rows and not table.allows_replacement():
        raise UnsupportedTableError(
            f'Table {uri} has delta.appendOnly, but a sink with mode="{mode.value}" removes rows.',
            remedy='Remove the property, or declare mode="append" or "insert".',
            table=uri,
            mode=mode.value,
        )
    return table.facts, choose_publisher(table, mode)


def refuse_unsupported(table: OpenTable, publisher: Publisher, mode: SinkMode) -> None:
    """Refuses an open table that ``publisher`` cannot publish into exactly once, in a mode.

    Raises:
        UnsupportedTableError: Features of the table prevent it. The error names all of them.
    """
    if found := table.obstacles(publisher, mode):
        without = " without a JVM" if publisher is Publisher.DELTA_RS else ""
        raise UnsupportedTableError(
            f"Table {table.facts.uri} has {', '.join(found)}, with which it cannot be published into exactly once{without}.",
            remedy="Use a table without it: most features can be dropped with ALTER TABLE … DROP FEATURE.",
            table=table.facts.uri,
            unsupported=found,
            publisher=publisher.value,
        )


def refuse_lossy(table_uri: str, add: Mapping[str, Any]) -> None:
    """Refuses an ``add`` that delta-rs would commit without a field that readers need.

    Raises:
        UnsupportedTableError: There are such fields. The error names them.
    """
    lost = [
        name
        for name in ("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider")
        if add.get(name) is not None
    ]
    if lost:
        raise UnsupportedTableError(
            f"A staged file of table {table_uri} carries {', '.join(lost)}, which delta-rs cannot commit.",
            remedy="Use a table without deletion vectors in new files, row tracking and clustering.",
            table=table_uri,
            path=add["path"],
        )


def _no_interval(problem: str, remedy: str, **evidence: Any) -> RejectedError:
    return RejectedError(problem, remedy=remedy, **evidence)


def _commit_info(operation: str, parameters: Mapping[str, str], timestamp_ms: int) -> dict[str, Any]:
    return {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": ENGINE,
        "txnId": str(uuid4()),  # no two commits have the same bytes: a create that finds its own has succeeded
    }


def _commit_properties(advance: Transaction, user_metadata: str) -> CommitProperties:
    return CommitProperties(
        max_commit_retries=0,  # a retry of delta-rs would keep the files of an append that it has not seen
        custom_metadata={"userMetadata": user_metadata},
        app_transactions=[advance],
    )


def _add_action(add: Mapping[str, Any]) -> AddAction:
    return AddAction(
        path=unquote(add["path"]),  # delta-rs quotes it again
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


def _changed(uri: str, why: str) -> ConflictError:
    return ConflictError(
        f"Another writer has changed table {uri} since it was read: {why}.",
        safe="Nothing was committed.",
        remedy="Repeat: the table is read again.",
        table=uri,
    )


@contextmanager
def delta_errors(uri: str, *, reading: bool) -> Iterator[None]:
    """Translates exceptions of delta-rs into errors of this package."""
    try:
        yield
    except (DeltaError, OSError, ValueError, NotImplementedError) as error:
        raise translated(error, uri, reading=reading) from error


def translated(error: Exception, uri: str, *, reading: bool) -> StreamPipelineError:
    """Returns the error of this package for an exception of delta-rs.

    Args:
        error: Exception of delta-rs. It contains the operating system's error number only as text.
        uri: URI of the table.
        reading: True if the call cannot have changed the table.
    """
    number = _OS_ERROR.search(str(error))
    if breaking := _BREAKING_ROWS.search(str(error)):  # the rest of the message contains values of these rows
        return UnsupportedTableError(
            f"Table {uri} does not accept {breaking.group(1)} of the staged rows: a NOT NULL column is null in them.",
            exists="The rows stay staged.",
            safe="Nothing was committed.",
            remedy=f"Undo the change of the table and publish again, or {BEGIN_ANEW}.",
            table=uri,
        )
    evidence = {"table": uri, "cause": f"{type(error).__name__}: {error}"}
    if isinstance(error, CommitFailedError) and not number:
        return ConflictError(
            f"Another writer has changed table {uri} since it was read: {error}",
            safe="Nothing was committed.",
            remedy="Repeat: the table is read again.",
            **evidence,
        )
    if isinstance(error, TableNotFoundError | FileNotFoundError):
        return NotFoundError(
            f"Table {uri} does not exist.", remedy="Check the path, or start the pipeline: it creates the table.", **evidence
        )
    if number or isinstance(error, OSError):
        kind = _KINDS.get(int(number.group(1)) if number else 0, StorageError)
        return kind(f"The storage of table {uri} fails: {error}", remedy="Repair the storage and repeat.", **evidence)
    if not reading:
        return OutcomeUnknownError(
            f"It is unknown whether table {uri} was changed: {error}", remedy="Repeat: it is read back first.", **evidence
        )
    if isinstance(error, DeltaProtocolError | SchemaMismatchError):
        return UnsupportedTableError(
            f"Table {uri} cannot be read by delta-rs: {error}",
            remedy="Drop the named table feature, or use another table.",
            **evidence,
        )
    return StorageError(f"Table {uri} cannot be read: {error}", remedy="Check the table's log and repeat.", **evidence)
