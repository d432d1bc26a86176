"""One Delta table through delta-rs: what it is now, and the one conditional Delta transaction that publishes into it.

delta-rs validates next to nothing, accepts a lower transaction version than the last, and lets two handles publish the same
version one after the other. So everything is checked here, and the version is read and the transaction committed on *one* handle:
then delta-rs refuses the commit if the same app id, the schema or the protocol has changed since the handle was opened, and that
is the compare-and-swap this design rests on.
"""

import errno
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.documents import Publisher, SinkCut, SinkMode
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.features import candidates, obstacles
from spark_jobs.publication.staged_files import table_directory

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_KINDS: dict[int, type[StorageError]] = {
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENOENT: NotFoundError,
}


@dataclass(frozen=True)
class TableFacts:
    """What a table is; recorded at the cut and compared before publication.

    ``schema_sha256`` covers the columns with their metadata and everything else that says which rows belong: the CHECK
    constraints and the column mapping.
    """

    uri: str
    table_id: str
    version: int
    schema_sha256: str
    protocol_sha256: str
    partition_by: tuple[str, ...]


def table_facts(uri: str) -> TableFacts:
    """What the table at ``uri`` is now. Whoever records facts and whoever compares them takes them from here.

    Raises:
        NotFoundError: There is no table.
        UnsupportedTableError: delta-rs cannot read it.
        StorageError: The storage fails.
    """
    return open_table(uri).facts


class OpenTable:
    """A Delta table as it was when it was opened."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self._uri, self._table = uri, table
        metadata, protocol = table.metadata(), table.protocol()
        self._fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
        self._configuration = metadata.configuration
        self._features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        self._writer = protocol.min_writer_version
        self.facts = TableFacts(
            uri=uri,
            table_id=str(metadata.id),
            version=table.version(),
            schema_sha256=self._schema_sha256(self._fields),
            protocol_sha256=_protocol_sha256(protocol.min_reader_version, protocol.min_writer_version, self._features),
            partition_by=tuple(metadata.partition_columns),
        )

    def transaction_version(self, app: AppId) -> CheckpointId | None:
        """The checkpoint that ``app`` has published last, None if none."""
        with _delta_errors(self._uri, reading=True):
            version = self._table.transaction_version(app)
        return None if version is None else CheckpointId(version)

    def accepts_schema(self, schema_sha256: str) -> bool:
        """Whether rows staged for a table with ``schema_sha256`` belong into this one.

        They do where the schema is the same, or has only gained nullable columns at its end.
        """
        fields = list(self._fields)
        while self._schema_sha256(fields) != schema_sha256:
            if not fields or not fields.pop()["nullable"]:
                return False
        return True

    def differs_only_in_rows(self, other: "OpenTable") -> bool:
        """Whether two looks at a table found the same but for its rows."""
        same_facts = replace(self.facts, version=other.facts.version) == other.facts
        return same_facts and self._configuration == other._configuration

    def obstacles(self, publisher: Publisher) -> list[str]:
        """What this table has that ``publisher`` cannot commit with, or that breaks exactly-once publication; empty if nothing."""
        identity = any(name.startswith("delta.identity.") for field in self._fields for name in field["metadata"])
        return obstacles(publisher, self._features, self._writer, self._configuration, identity=identity)

    def allows_replacement(self) -> bool:
        """Whether files may be removed from this table."""
        return self._configuration.get("delta.appendOnly", "false").lower() != "true"

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
            opened. Rows that
        somebody else has appended meanwhile do not matter. The handle is used up: open the table again to look at it or to commit
        more.

        Args:
            adds: Delta's ``add`` actions. May be empty: the version advances all the same.
            app: Whose version advances.
            version: Its new version.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Remove all files that the table has, in the same transaction; then *any* commit since it was opened is a
                conflict.

        Raises:
            ConflictError: Somebody else was faster; nothing of this was committed.
            OutcomeUnknownError: It may be public. Read :meth:`transaction_version` of a newly opened table.
            StorageError: The storage failed, probably before the commit. Read back as well.
        """
        properties = CommitProperties(
            # Left to itself, delta-rs would keep the files of an append that it has not seen.
            max_commit_retries=0 if replace else None,
            custom_metadata={"userMetadata": canonical(dict(commit_info)).decode()},
            app_transactions=[Transaction(app, version, int(time.time() * 1000))],
        )
        actions: list[AddAction | RemoveAction] = [_add_action(add) for add in adds]
        with _delta_errors(self._uri, reading=False):
            self._table.create_write_transaction(
                actions,
                mode="overwrite" if replace else "append",
                schema=self._table.schema(),
                partition_by=list(self.facts.partition_by),
                commit_properties=properties,
            )

    def _schema_sha256(self, fields: Sequence[Mapping[str, Any]]) -> str:
        kept = {
            name: value
            for name, value in self._configuration.items()
            if name.startswith("delta.constraints.") or name == "delta.columnMapping.mode"
        }
        return sha256(canonical({"fields": list(fields), "configuration": kept}))


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
        """As the protocol says. Rows of an upsert sink never come here: see :func:`choose_publisher`."""
        self.table.commit((line["add"] for line in lines), self._app, version, commit_info, replace=replace)

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        """As the protocol says."""
        self.table.commit((), self._app, version, commit_info)


def open_table(uri: str, version: int | None = None) -> OpenTable:
    """Opens a table at its newest, or at an older, Delta version.

    Raises:
        NotFoundError: There is no table, or not this version (any more).
        UnsupportedTableError: delta-rs cannot read it.
        StorageError: The storage fails.
    """
    address = table_directory(uri).as_uri()
    if version is None:
        with _delta_errors(uri, reading=True):
            return OpenTable(uri, DeltaTable(address))
    try:
        return OpenTable(uri, DeltaTable(address, version=version))
    except DeltaError as error:
        raise NotFoundError(
            f"Version {version} of table {uri} cannot be read.",
            remedy="It does not exist, or its log entry was cleaned.",
            table=uri,
            version=version,
            cause=str(error),
        ) from error
    except OSError as error:
        raise translated(error, uri, reading=True) from error


def choose_publisher(table: OpenTable, mode: SinkMode) -> Publisher:
    """Who is to publish into a table: delta-rs wherever it can.

    Raises:
        UnsupportedTableError: Nobody can exactly once; names what the table has that does not allow it.
    """
    for publisher in candidates(mode):
        if not table.obstacles(publisher):
            return publisher
    refuse_unsupported(table, candidates(mode)[-1])
    raise AssertionError("unreachable: the last candidate was refused")


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
    if mode is not SinkMode.APPEND and not table.allows_replacement():
        raise UnsupportedTableError(
            f'Table {uri} has delta.appendOnly, and a sink with mode="{mode.value}" removes rows.',
            safe="Nothing was written.",
            remedy='Take the property away, or declare mode="append".',
            table=uri,
            mode=mode.value,
        )
    return table.facts, choose_publisher(table, mode)


def refuse_unsupported(table: OpenTable, publisher: Publisher) -> None:
    """Refuses an open table that ``publisher`` cannot publish into exactly once.

    Raises:
        UnsupportedTableError: Names everything that the table has and that does not allow publication.
    """
    if found := table.obstacles(publisher):
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


def _add_action(add: Mapping[str, Any]) -> AddAction:
    return AddAction(
        path=unquote(add["path"]),  # delta-rs quotes it again
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


def _protocol_sha256(reader: int, writer: int, features: set[str]) -> str:
    return sha256(canonical({"reader": reader, "writer": writer, "features": sorted(features)}))


@contextmanager
def _delta_errors(uri: str, *, reading: bool) -> Iterator[None]:
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
    if "catalog-managed" in str(error):
        return UnsupportedTableError(
            f"Table {uri} has catalogManaged, with which it cannot be published into without its catalog.",
            safe="Nothing was written.",
            remedy="Use a table that is not managed by a catalog.",
            **evidence,
        )
    if isinstance(error, DeltaProtocolError | SchemaMismatchError):
        return UnsupportedTableError(
            f"Table {uri} is not one that delta-rs understands: {error}",
            safe="Nothing was written.",
            remedy="Drop the table feature that is named, or use another table.",
            **evidence,
        )
    return StorageError(f"Table {uri} cannot be read: {error}", remedy="Check the table's log and repeat.", **evidence)
