"""One Delta table without a JVM: what it is now, and the one conditional Delta transaction that publishes into it.

The table is looked at through its log alone (:mod:`spark_jobs.publication.table_log`). The version of an app id is read and the
transaction committed on *one* :class:`OpenTable`. An append is the create of the log's next version. If somebody else has created
that version, the log is followed, and the append is repeated only where neither the app id's version nor the schema nor the
protocol has changed since the table was opened. That is the compare-and-swap this design rests on.

delta-rs makes the one transaction that needs the list of files, a replacement, and writes checkpoints of the log.
"""

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
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
from spark_jobs.protocol.documents import Publisher, SinkCut, SinkMode
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
from spark_jobs.publication.features import candidates, merge_obstacles, obstacles
from spark_jobs.publication.fitting import shape
from spark_jobs.publication.table_log import TableLog, TableState
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.table_uris import is_in_store, table_files, uri_of

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
"""What a commit of this runtime's own says that wrote it."""
_APPEND_TRIES = 15
_LOGS_KEPT = 256
_CHECKPOINT_INTERVAL = 100
"""The commits between two checkpoints of a log, where the table does not say it; delta-rs has the same default."""


LARGE_FILE_BYTES = 64 * 2**20
"""Files of deleted keys that are as large are not compacted again: so much is written anew at most, beside what has been added since."""
_NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_BREAKING_ROWS = re.compile(r"Invalid data found: (\d+) rows failed validation check")
_FILES_KEPT_BY_DEFAULT = timedelta(weeks=1)


STAGED, TABLE = "staged", "published"
"""The names of the source and of the table in a ``MERGE``."""


@dataclass(frozen=True)
class MergeStatement:
    """A ``MERGE`` as delta-rs takes it."""

    source: Any
    """An Arrow table with at most one row of each key."""
    same: str
    """The condition on which a row of the source is that of a row of the table."""
    delete_if: str | None
    """The condition on which it deletes that row; None: never."""
    update_if: str | None
    """The condition on which it replaces that row; None: never."""
    insert_if: str
    """The condition on which it is added where the table has no row of its key."""
    values: Mapping[str, str]
    """What is written: by column an expression."""


@dataclass(frozen=True)
class TableFacts:
    """What a table is; recorded at the cut and compared before publication."""

    uri: str
    table_id: str
    version: int
    shape: TableShape
    partition_by: tuple[str, ...]


def data_files(uri: str) -> list[tuple[str, int]]:
    """Returns the data files of the table at ``uri``: the path of each below the table, and its size in bytes.

    Raises:
        NotFoundError: There is no table.
        StorageError: The storage fails, or delta-rs cannot read the table.
    """
    with delta_errors(uri, reading=True):
        actions = delta_table(uri).get_add_actions()
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return [(unquote(path), int(size_bytes)) for path, size_bytes in zip(paths, sizes, strict=True)]


def rows_by_file(uri: str) -> dict[str, int]:
    """Returns the rows of each data file of the table at ``uri``, those that were deleted from it since included.

    Raises:
        NotFoundError: There is no table.
        StorageError: The storage fails, or delta-rs cannot read the table.
    """
    with delta_errors(uri, reading=True):
        actions = delta_table(uri).get_add_actions()
    paths, rows = actions.column("path").to_pylist(), actions.column("num_records").to_pylist()
    return {unquote(path): int(count or 1) for path, count in zip(paths, rows, strict=True)}


class OpenTable:
    """A Delta table as it was when it was opened.

    Raises:
        UnsupportedTableError: Its schema has a type that is not known here.
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
        """Returns the checkpoint that ``app`` has published last, None if none."""
        return self._state.apps.get(app)

    def incarnations(self, pipeline: PipelineUuid) -> list[IncarnationId]:
        """Returns the incarnations of a pipeline that have published into the table, sorted; the table never forgets one."""
        return sorted({incarnation for app in self._state.apps if (incarnation := incarnation_of(app, pipeline))})

    def differs_only_in_rows(self, other: "OpenTable") -> bool:
        """Whether two looks at a table found the same but for its rows."""
        return self._state.differs_only_in_rows(other._state)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [field["name"] for field in self._fields]

    def obstacles(self, publisher: Publisher, mode: SinkMode = SinkMode.APPEND) -> list[str]:
        """What this table has that ``publisher`` cannot commit with, or that breaks exactly-once publication; empty if nothing.

        Args:
            publisher: Who is to commit.
            mode: The sink's: a merge writes rows, and what else commits only adds and removes files.
        """
        identity = any(name.startswith("delta.identity.") for field in self._fields for name in field["metadata"])
        state = self._state
        found = obstacles(publisher, state.features, state.writer_version, state.configuration, identity=identity)
        if publisher is Publisher.DELTA_RS and mode.has_keys:
            found += merge_obstacles(self._fields, state.configuration)
        # Spark's commit in a store is no compare-and-swap: it could replace a commit of somebody else. What has keys may need Spark.
        needs_spark = publisher is Publisher.SPARK or mode.has_keys
        return [*found, "its place in a store"] if needs_spark and is_in_store(self._uri) else found

    def allows_replacement(self) -> bool:
        """Whether files may be removed from this table."""
        return self._state.configuration.get("delta.appendOnly", "false").lower() != "true"

    @property
    def keeps_deleted_files(self) -> timedelta:
        """How old a file has to be that the table does not name before a VACUUM deletes it."""
        given = self._state.configuration.get("delta.deletedFileRetentionDuration", "")
        with suppress(RejectedError):
            return timedelta(milliseconds=interval_ms(_no_interval, "retention", given.lower().removeprefix("interval ")))
        return _FILES_KEPT_BY_DEFAULT

    def commits(self) -> Iterator[list[Mapping[str, Any]]]:
        """Returns all actions of the commits that the log still has, oldest first.

        Raises:
            StorageError: The storage fails, or the log cannot be read.
        """
        return self._log.commits()

    @property
    def file_count(self) -> int:
        """About how many files the table has."""
        return self._log.file_count

    def needs_checkpoint(self) -> bool:
        """Whether so many commits follow the log's newest checkpoint that a reader should get another one."""
        interval = self._state.configuration.get("delta.checkpointInterval", "")
        return self._log.commits_since_checkpoint >= (int(interval) if interval.isdecimal() else _CHECKPOINT_INTERVAL)

    def write_checkpoint(self) -> None:
        """Writes a checkpoint of the log and removes what has expired. Loads the list of all files of the table.

        Raises:
            StorageError: The storage fails, or delta-rs cannot read the table.
        """
        with delta_errors(self._uri, reading=True):
            table = delta_table(self._uri)
            table.create_checkpoint()
            if self._state.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
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
        """Makes ``adds`` public in one Delta transaction that carries ``SetTransaction(app, version)``; durable on return.

        Conditional: succeeds only if neither ``app``'s version nor the schema nor the protocol has changed since this table was
        opened. Rows that somebody else has appended since do not matter. To look at the table again or to commit more, open it again.

        Args:
            adds: Delta's ``add`` actions. May be empty: the version advances all the same.
            app: Whose version advances.
            version: Its new version.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Remove all files that the table has, in the same transaction; then *any* commit since it was opened is a
                conflict.

        Raises:
            ConflictError: Somebody else was faster; nothing of this was committed.
            UnsupportedTableError: The table needs more of a commit than is possible without a JVM. Nothing was committed.
            OutcomeUnknownError: It may be public. Read :meth:`transaction_version` of a newly opened table.
            StorageError: The storage failed, probably before the commit. Read back as well.
        """
        refuse_unsupported(self, Publisher.DELTA_RS)
        user_metadata = canonical(dict(commit_info)).decode()
        advance = {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}
        if replace:
            self._replace(adds, advance, user_metadata)
        else:
            self._append(adds, advance, user_metadata)

    def change_columns(self, before: Mapping[str, Any], metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
        """Gives the table other columns in one conditional commit; durable on return.

        Args:
            before: The table's metadata as the caller has seen it.
            metadata: What it is to be; the table keeps its id.
            protocol: What the columns need.

        Raises:
            ConflictError: Somebody else has changed the table; nothing was committed.
            OutcomeUnknownError: It may be done.
            StorageError: The storage failed.
        """
        if (before["id"], before["schemaString"]) != (self._state.table_id, self._state.schema_text):
            raise _changed(self._uri, "it has other columns now")
        info = {
            "timestamp": int(time.time() * 1000),
            "operation": "CHANGE COLUMNS",
            "operationParameters": {},
            "engineInfo": ENGINE,
        }
        changed = {**metadata, "id": before["id"]}
        actions = [{"commitInfo": {**info, "txnId": str(uuid4())}}, {"protocol": protocol}, {"metaData": changed}]
        try:
            self._log.create(self._state, b"".join(canonical(action) + b"\n" for action in actions))
        except AlreadyExistsError as error:
            raise _changed(self._uri, "another commit was faster") from error

    def _append(self, adds: Iterable[Mapping[str, Any]], advance: Mapping[str, Any], user_metadata: str) -> None:
        info = {
            "timestamp": advance["lastUpdated"],
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(list(self.facts.partition_by))},
            "engineInfo": ENGINE,
            "txnId": str(uuid4()),  # no two commits have the same bytes: a create that finds its own has succeeded
            "userMetadata": user_metadata,
        }
        actions = [{"commitInfo": info}, {"txn": advance}, *({"add": {**add, "dataChange": True}} for add in adds)]
        commit = b"".join(canonical(action) + b"\n" for action in actions)
        after, app = self._state, AppId(advance["appId"])
        for _ in range(_APPEND_TRIES):
            try:
                return self._log.create(after, commit)
            except AlreadyExistsError:
                after = self._log.newest()
            if after.apps.get(app) != self._state.apps.get(app) or not after.differs_only_in_rows(self._state):
                break
        raise _changed(self._uri, "another commit was faster")

    def merge(self, statement: MergeStatement, app: AppId, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """Merges rows into the table in one Delta transaction that carries ``SetTransaction(app, version)``; durable on return.

        Any commit since the table was opened is a conflict. The other errors are those of :meth:`commit`.

        Args:
            statement: The rows, and what becomes of them.
            app: Whose version advances.
            version: Its new version.
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
            streamed_exec=False,  # else delta-rs reads every file of the table, whatever the keys are
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
        if table.version() == self._state.version:  # delta-rs commits nothing where no row changes
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
        """Returns the table with its files, at the version that was looked at."""
        with delta_errors(self._uri, reading=True):
            try:
                table = delta_table(self._uri, self._state.version)
            except DeltaError as error:
                raise _changed(self._uri, "the version that was looked at is gone") from error
        if str(table.metadata().id) != self._state.table_id:
            raise _changed(self._uri, "it is another table now")
        return table


class DeltaRsTransaction:
    """A table as it was when it was opened, and the one transaction that can follow.

    See :class:`spark_jobs.publication.transactions.Transaction`.
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
        """As the protocol says. A merge reads the rows of the table, so any commit since it was opened is a conflict."""
        if cut.merge is None:
            self.table.commit((line["add"] for line in lines), self._app, version, commit_info, replace=replace)
            return
        from spark_jobs.publication.delta_rs_merge import publish_merge  # pyarrow: only where it is needed

        publish_merge(self.table, cut, list(lines), self._app, version, commit_info)

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """As the protocol says."""
        self.table.commit((), self._app, version, commit_info)


class DeltaRsKeeper:
    """Keeps a table of deleted keys small. See :class:`spark_jobs.publication.deleted_keys.TableKeeper`."""

    def compact(self, uri: str) -> None:
        """As the protocol says.

        Raises:
            ConflictError: Somebody else was faster.
            StorageError: The storage fails.
        """
        with delta_errors(uri, reading=True):
            table = delta_table(uri)
        with delta_errors(uri, reading=False):
            table.optimize.compact(target_size=LARGE_FILE_BYTES, post_commithook_properties=_NOTHING_AFTERWARDS)

    def checkpoint(self, uri: str) -> None:
        """As the protocol says.

        Raises:
            StorageError: The storage fails.
        """
        open_table(uri).write_checkpoint()


def open_table(uri: str, version: int | None = None) -> OpenTable:
    """Opens a table at its newest, or at an older, Delta version.

    This process remembers the logs that it has read: opening a table again reads what was committed since.

    Raises:
        NotFoundError: There is no table, or not this version (any more).
        UnsupportedTableError: Its address or its schema is beyond what is possible without a JVM.
        StorageError: The storage fails.
    """
    log = log_of(uri)
    return OpenTable(uri, log, log.newest() if version is None else log.at(version))


@lru_cache(maxsize=_LOGS_KEPT)
def log_of(uri: str) -> TableLog:
    """Returns the log of a table: one object in this process, which remembers what it has read."""
    return TableLog(table_files(uri).below(DELTA_LOG), uri)


def delta_table(uri: str, version: int | None = None) -> DeltaTable:
    """Opens a table with delta-rs, which loads the list of all its files."""
    address = uri_of(table_files(uri))
    options = ObjectStoreSettings.of(os.environ).for_delta_rs() if uri.startswith("s3:") else None
    return DeltaTable(address, version=version, storage_options=options)


def choose_publisher(table: OpenTable, mode: SinkMode) -> Publisher:
    """Who is to publish into a table: delta-rs wherever it can.

    Raises:
        UnsupportedTableError: Nobody can exactly once; names what the table has that does not allow it.
    """
    for publisher in candidates(mode):
        if not table.obstacles(publisher, mode):
            return publisher
    refuse_unsupported(table, candidates(mode)[-1])
    raise AssertionError("unreachable: the last candidate was refused")


def publisher_now(table: OpenTable, recorded: Publisher, mode: SinkMode) -> Publisher:
    """Who is to publish into a table that may have been changed since its publisher was recorded.

    Raises:
        UnsupportedTableError: As :func:`choose_publisher`.
    """
    return choose_publisher(table, mode) if table.obstacles(recorded, mode) else recorded


def check_publishable(uri: str, mode: SinkMode = SinkMode.APPEND) -> tuple[TableFacts, Publisher]:
    """Refuses a table that cannot be published into exactly once.

    Returns:
        What the table is, and who is to publish into it.

    Raises:
        UnsupportedTableError: Names what the table has that does not allow it.
        NotFoundError: There is no table.
        StorageError: The storage fails.
    """
    table = open_table(uri)
    if mode.removes_rows and not table.allows_replacement():
        raise UnsupportedTableError(
            f'Table {uri} has delta.appendOnly, and a sink with mode="{mode.value}" removes rows.',
            safe="Nothing was written.",
            remedy='Take the property away, or declare mode="append" or "insert".',
            table=uri,
            mode=mode.value,
        )
    return table.facts, choose_publisher(table, mode)


def refuse_unsupported(table: OpenTable, publisher: Publisher, mode: SinkMode = SinkMode.APPEND) -> None:
    """Refuses an open table that ``publisher`` cannot publish into exactly once, in a mode.

    Raises:
        UnsupportedTableError: Names everything that the table has and that does not allow publication.
    """
    if found := table.obstacles(publisher, mode):
        without = " without a JVM" if publisher is Publisher.DELTA_RS else ""
        raise UnsupportedTableError(
            f"Table {table.facts.uri} has {', '.join(found)}, with which it cannot be published into exactly once{without}.",
            safe="Nothing was written.",
            remedy="Use a table without it: most features can be dropped with ALTER TABLE … DROP FEATURE.",
            table=table.facts.uri,
            unsupported=found,
            publisher=publisher.value,
        )


def refuse_lossy(table_uri: str, add: Mapping[str, Any]) -> None:
    """Refuses an ``add`` that delta-rs would commit without a field that readers need.

    Raises:
        UnsupportedTableError: Names the fields.
    """
    lost = [
        name
        for name in ("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider")
        if add.get(name) is not None
    ]
    if lost:
        raise UnsupportedTableError(
            f"A staged file of table {table_uri} carries {', '.join(lost)}, which delta-rs cannot commit.",
            safe="Nothing was written.",
            remedy="Use a table without deletion vectors in new files, row tracking and clustering.",
            table=table_uri,
            path=add["path"],
        )


def _no_interval(problem: str, remedy: str, **evidence: Any) -> RejectedError:
    return RejectedError(problem, remedy=remedy, **evidence)


def _commit_properties(advance: Transaction, user_metadata: str) -> CommitProperties:
    return CommitProperties(
        max_commit_retries=0,  # left to itself, delta-rs would keep the files of an append that it has not seen
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
        f"Somebody else has changed table {uri} since it was looked at: {why}.",
        safe="Nothing was committed.",
        remedy="Repeat: the table is looked at anew.",
        table=uri,
    )


@contextmanager
def delta_errors(uri: str, *, reading: bool) -> Iterator[None]:
    """The one place where an exception of delta-rs becomes an error of ours."""
    try:
        yield
    except (DeltaError, OSError, ValueError, NotImplementedError) as error:
        raise translated(error, uri, reading=reading) from error


def translated(error: Exception, uri: str, *, reading: bool) -> StreamPipelineError:
    """What an exception of delta-rs means.

    Args:
        error: As raised by delta-rs, which gives the operating system's error number only as text.
        uri: The table.
        reading: Whether the call could not have changed the table.
    """
    number = _OS_ERROR.search(str(error))
    if breaking := _BREAKING_ROWS.search(str(error)):  # what follows there are values of these rows
        return UnsupportedTableError(
            f"Table {uri} does not take {breaking.group(1)} of the staged rows: a column of theirs is null and must not be.",
            exists="The rows stay staged.",
            safe="Nothing was committed.",
            remedy=f"Undo what has changed in the table and publish again, or {BEGIN_ANEW}.",
            table=uri,
        )
    evidence = {"table": uri, "cause": f"{type(error).__name__}: {error}"}
    if isinstance(error, CommitFailedError) and not number:
        return ConflictError(
            f"Somebody else has changed table {uri} since it was looked at: {error}",
            safe="Nothing was committed.",
            remedy="Repeat: the table is looked at anew.",
            **evidence,
        )
    if isinstance(error, TableNotFoundError | FileNotFoundError):
        return NotFoundError(
            f"Table {uri} is not there.", remedy="Check the path, or start the pipeline: it makes the table.", **evidence
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
            f"Table {uri} is not one that delta-rs understands: {error}",
            safe="Nothing was written.",
            remedy="Drop the table feature that is named, or use another table.",
            **evidence,
        )
    return StorageError(f"Table {uri} cannot be read: {error}", remedy="Check the table's log and repeat.", **evidence)
