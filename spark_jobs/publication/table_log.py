"""The log of a Delta table, read without the list of its files.

A publication needs five things of a table: its newest version, its metadata, its protocol, the versions of app ids, and a
conditional commit. None of them grows with the number of files. So this module reads four columns of the newest checkpoint and
the JSON commits after it, skips every line that names a file, and then follows the tail of the log. delta-rs has no such reader: it
loads all files when it opens a table (docs/adr/0017-publication-reads-no-list-of-files.md).

Earlier reads are not trusted: each read lists the log and compares the newest known commit, at the same time, and compares it again after
newer commits were read. If that commit is missing or has other bytes, the table or the commit was replaced, and the log is read from the
start.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.delta_log import LAST_CHECKPOINT, LogListing, commit_name
from spark_jobs.protocol.errors import ConflictError, NotFoundError, StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.storage.files import Files, opened, side_by_side, sync_readable
from spark_jobs.storage.table_uris import table_files

_FILE_ACTIONS = (b'{"add":', b'{"remove":', b'{"cdc":')
_COLUMNS = {"protocol": "minReaderVersion", "metaData": "id", "txn": "appId", "domainMetadata": "domain"}
"""The columns of a checkpoint that are read, each with a field that is never null."""
_KEPT_VERSIONS = 64
_TRIES = 5
_BATCH_ROWS = 1 << 16
ROW_TRACKING_DOMAIN, ROW_TRACKING_MARK = "delta.rowTracking", "rowIdHighWaterMark"
"""The domain of Delta's row tracking, and the field of its configuration with the highest row id."""


@dataclass(frozen=True)
class TableState:
    """The state of a table at one version, without its files.

    ``mark`` identifies the bytes of the version's commit. None if only a checkpoint of this version is left.
    """

    version: int
    table_id: str
    schema_text: str
    """The schema in Delta's JSON."""
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    reader_version: int
    writer_version: int
    features: frozenset[str]
    apps: Mapping[AppId, CheckpointId]
    """The newest version of each app id."""
    mark: str | None = field(default=None, compare=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The whole ``metaData`` action."""
    in_commit_timestamp: int | None = field(default=None, compare=False)
    """The newest in-commit timestamp that the log has, in ms. None: it has none, or its commit was cleaned."""
    highest_row_id: int = field(default=-1, compare=False)
    """The highest row id that is taken, if the table has row tracking."""

    def differs_only_in_rows(self, other: "TableState") -> bool:
        """Returns True if two states of a log differ only in files and versions of app ids."""
        return replace(self, version=other.version, apps=other.apps) == other


class TableLog:
    """The log of one table. It is thread-safe, because its cache is replaced as a whole.

    Args:
        files: Files of the table's ``_delta_log``.
        table: URI of the table, for messages.
    """

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table
        self._recent: tuple[TableState, ...] = ()
        """The newest known versions, oldest first, without gaps."""
        self._file_count = 0
        self._checkpoint: int | None = None

    def newest(self) -> TableState:
        """Returns the newest version. Reads only commits since the last call.

        Raises:
            NotFoundError: There is no table.
            StorageError: The storage fails, or the log cannot be read.
        """
        for _ in range(_TRIES):
            recent = self._recent  # another thread may replace it
            known = recent[-1] if recent else None
            is_known = partial(self._is_unchanged, known) if known else bool
            names, unchanged = side_by_side(self._files, [partial(self._files.names, ""), is_known])
            listed = LogListing(names)
            if listed.newest is None:
                break
            try:
                followed = self._followed(listed, recent) if unchanged else ()
                self._recent = (followed or self._read(listed, listed.newest))[-_KEPT_VERSIONS:]
            except NotFoundError:
                continue  # cleaned or dropped since it was listed
            self._checkpoint = max(listed.checkpoints, default=None)
            return self._recent[-1]
        else:
            raise self._unreadable("its log changes faster than it can be read, or lacks a version")
        raise NotFoundError(
            f"Table {self._table} does not exist.",
            remedy="Check the path, or start the pipeline: it creates the table.",
            table=self._table,
        )

    def at(self, version: int) -> TableState:
        """Returns one version if it can still be read.

        Raises:
            NotFoundError: There is no such version, or its log entry was cleaned.
            StorageError: The storage fails, or the log cannot be read.
        """
        for state in self._recent:
            if state.version == version and self._is_unchanged(state):
                return state
        file_count = self._file_count
        try:
            return self._read(LogListing(self._files.names("")), version)[-1]
        finally:
            self._file_count = file_count  # the count of the newest version

    def commits(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yields all actions of the commits that are still in the log, oldest first. Reads every commit.

        Raises:
            StorageError: The storage fails, or the log cannot be read.
        """
        for version in sorted(LogListing(self._files.names("")).commits):
            try:
                lines = self._files.read(commit_name(version)).splitlines()
            except NotFoundError:
                continue  # cleaned since it was listed
            try:
                yield [json.loads(line) for line in lines if line.strip()]
            except ValueError as error:
                raise self._unreadable(f"its log has a line that is not JSON: {error}") from error

    def create(self, after: TableState, commit: bytes) -> None:
        """Creates the commit after ``after``. On return it is durable, like all earlier ones.

        Raises:
            AlreadyExistsError: Another writer has created that version.
            ConflictError: ``after`` is not in the log any more: the table, or its newest commit, was replaced.
            OutcomeUnknownError: The commit may exist.
            StorageError: The storage failed.
        """
        try:
            if after.mark is not None:
                sync_readable(self._files, commit_name(after.version))
            unchanged = after.mark is None or self._is_unchanged(after)
        except NotFoundError:
            unchanged = False
        if not unchanged:
            raise ConflictError(
                f"The log of table {self._table} was replaced since it was read.",
                safe="Nothing was committed.",
                remedy="Repeat: the table is read again.",
                table=self._table,
                version=after.version,
            )
        self._files.create(commit_name(after.version + 1), commit)

    def sync_written(self, version: int) -> None:
        """Makes the commit of a version and its added files durable. For commits that a library has made.

        Raises:
            StorageError: The storage fails.
        """
        actions = [json.loads(line) for line in self._files.read(commit_name(version)).splitlines() if line.strip()]
        added = [action[kind]["path"] for action in actions for kind in ("add", "cdc") if kind in action]
        table_files(self._table).sync(*map(unquote, added))
        self._files.sync(commit_name(version))

    @property
    def commits_since_checkpoint(self) -> int:
        """Returns the number of commits after the newest checkpoint, as of the last :meth:`newest`."""
        newest = self._recent[-1].version if self._recent else 0
        return newest - (0 if self._checkpoint is None else self._checkpoint)

    @property
    def file_count(self) -> int:
        """Returns the approximate number of files of the table, as of the last :meth:`newest`."""
        return self._file_count

    def _followed(self, listed: "LogListing", recent: tuple[TableState, ...]) -> tuple[TableState, ...]:
        """Returns the known versions and the new ones, or nothing if the log must be read from the start.

        Args:
            listed: The log.
            recent: The known versions. The commit of the newest one was unchanged while the log was listed.
        """
        assert listed.newest is not None
        known = recent[-1]
        newer = range(known.version + 1, listed.newest + 1)
        if known.version not in listed.commits or not listed.commits.issuperset(newer):
            return ()
        followed = (*recent, *self._replayed(known, newer))
        return followed if not newer or self._is_unchanged(known) else ()  # the table may have been replaced while they were read

    def _read(self, listed: "LogListing", version: int) -> tuple[TableState, ...]:
        """Reads the versions up to ``version``, beginning with the newest checkpoint that is not after it.

        Raises:
            NotFoundError: A needed file is missing.
        """
        base = max((number for number in listed.checkpoints if number <= version), default=None)
        newer = range(0 if base is None else base + 1, version + 1)
        if not listed.commits.issuperset(newer):
            raise self._gone(version)
        if version == listed.newest:
            self._file_count = self._files_in_checkpoint(base)
        if base is None:
            first = self._begun(newer)
            return (first, *self._replayed(first, newer[1:]))
        actions = [action for name in listed.checkpoints[base] for action in self._checkpoint_actions(name)]
        beginning = self._beginning(commit_name(base)) if base in listed.commits else None
        if beginning:
            actions.extend(self._parsed(beginning.split(b"\n")[:1]))  # its commit info: no checkpoint has it
        begun = self._applied(None, base, actions, None if beginning is None else sha256(beginning))
        return (begun, *self._replayed(begun, newer))

    def _begun(self, versions: Sequence[int]) -> TableState:
        if not versions:
            raise self._unreadable("its log is empty")
        actions, mark = self._commit_actions(versions[0])
        return self._applied(None, versions[0], actions, mark)

    def _replayed(self, state: TableState, versions: Iterable[int]) -> Iterator[TableState]:
        for version in versions:
            actions, mark = self._commit_actions(version)
            state = self._applied(state, version, actions, mark)
            yield state

    def _applied(
        self, before: TableState | None, version: int, actions: Iterable[Mapping[str, Any]], mark: str | None
    ) -> TableState:
        """Returns ``before`` with the actions of one commit, or a state made of a checkpoint's or the first commit's actions."""
        found: dict[str, Any] = {"version": version, "mark": mark}
        apps: dict[AppId, CheckpointId] = {}
        for action in actions:
            if (txn := action.get("txn")) is not None:
                apps[AppId(txn["appId"])] = CheckpointId(txn["version"])
            if (info := action.get("commitInfo")) is not None and "inCommitTimestamp" in info:
                found["in_commit_timestamp"] = info["inCommitTimestamp"]
            if (domain := action.get("domainMetadata")) is not None and domain["domain"] == ROW_TRACKING_DOMAIN:
                found["highest_row_id"] = -1 if domain.get("removed") else json.loads(domain["configuration"])[ROW_TRACKING_MARK]
            if (metadata := action.get("metaData")) is not None:
                found["metadata"] = MappingProxyType(dict(metadata))
                found["table_id"] = str(metadata["id"])
                found["schema_text"] = metadata["schemaString"]
                found["partition_by"] = tuple(metadata.get("partitionColumns") or ())
                found["configuration"] = MappingProxyType(dict(metadata.get("configuration") or {}))
            if (protocol := action.get("protocol")) is not None:
                found["reader_version"] = protocol["minReaderVersion"]
                found["writer_version"] = protocol["minWriterVersion"]
                found["features"] = frozenset((*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())))
        if before is not None:
            return replace(before, **found, apps=MappingProxyType({**before.apps, **apps}) if apps else before.apps)
        if "table_id" not in found or "reader_version" not in found:
            raise self._unreadable(f"version {version} of its log has no metadata or no protocol")
        return TableState(**found, apps=MappingProxyType(apps))

    def _commit_actions(self, version: int) -> tuple[list[Mapping[str, Any]], str]:
        """Returns the actions of a commit that are not about files, and the commit's mark."""
        actions: list[Mapping[str, Any]] = []
        mark, rest = "", b""
        for chunk in self._files.chunks(commit_name(version)):
            mark = mark or sha256(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            actions.extend(self._parsed(self._counted(lines)))
        actions.extend(self._parsed(self._counted([rest])))
        return actions, mark or sha256(b"")

    def _counted(self, lines: list[bytes]) -> list[bytes]:
        """Counts the files that a commit adds and removes."""
        for line in lines:
            self._file_count += line.startswith(b'{"add":') - line.startswith(b'{"remove":')
        return lines

    def _parsed(self, lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
        for line in lines:
            if line.strip() and not line.startswith(_FILE_ACTIONS):
                try:
                    action = json.loads(line)
                except ValueError as error:
                    raise self._unreadable(f"its log has a line that is not JSON: {error}") from error
                yield action

    def _checkpoint_actions(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Yields the actions of a checkpoint, or of a part of it, that are not about files."""
        if name.endswith(".json"):
            yield from self._parsed(self._files.read(name).split(b"\n"))
            return
        import pyarrow
        import pyarrow.parquet

        try:
            with opened(self._files, name) as found, pyarrow.parquet.ParquetFile(found) as file:
                for group in range(file.num_row_groups):
                    for column, expected in _values_of(file.metadata.row_group(group)).items():
                        yield from _values(file, group, column, expected)
        except FileNotFoundError as error:
            raise self._gone(int(name[:20])) from error
        except (OSError, pyarrow.ArrowException) as error:
            raise self._unreadable(f"checkpoint {name} of its log cannot be read: {error}") from error

    def _files_in_checkpoint(self, version: int | None) -> int:
        """Returns the number of files in the newest checkpoint, according to its writer."""
        try:
            hint = json.loads(self._files.read(LAST_CHECKPOINT))
            return int(hint.get("numOfAddFiles") or hint["size"]) if hint["version"] == version else 0
        except (NotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _is_unchanged(self, state: TableState) -> bool:
        """Returns True if the commit of a version is the one that was read."""
        try:
            return state.mark is not None and self._mark(commit_name(state.version)) == state.mark
        except NotFoundError:
            return False

    def _mark(self, name: str) -> str:
        """Returns the hash of a commit's first megabyte. Its commit info and random file names make it unique."""
        return sha256(self._beginning(name))

    def _beginning(self, name: str) -> bytes:
        """Returns the first megabyte of a commit."""
        with closing(self._files.chunks(name)) as chunks:
            return next(chunks, b"")

    def _gone(self, version: int) -> NotFoundError:
        return NotFoundError(
            f"Version {version} of table {self._table} cannot be read.",
            remedy="Choose another version: this one does not exist, or its log entry was cleaned.",
            table=self._table,
            version=version,
        )

    def _unreadable(self, why: str) -> StorageError:
        return StorageError(
            f"Table {self._table} cannot be read: {why}.",
            safe="Nothing was written.",
            remedy="Check the table's log and repeat.",
            table=self._table,
        )


def _values_of(group: Any) -> dict[str, float]:
    """Returns the number of values in the needed columns of a Parquet row group, by its statistics; infinite without statistics."""
    found: dict[str, float] = {}
    for index in range(group.num_columns):
        leaf = group.column(index)
        column, _, field_name = leaf.path_in_schema.partition(".")
        if _COLUMNS.get(column) == field_name:
            counted = leaf.statistics is not None and leaf.statistics.has_null_count
            found[column] = leaf.num_values - leaf.statistics.null_count if counted else float("inf")
    return found


def _values(file: Any, group: int, column: str, expected: float) -> Iterator[dict[str, Any]]:
    """Yields the values of a column as actions. Stops after the last one, because most rows of a checkpoint are files."""
    if expected:
        for batch in file.iter_batches(_BATCH_ROWS, [group], [column]):
            for value in batch.column(column).drop_null().to_pylist(maps_as_pydicts="strict"):
                yield {column: value}
                expected -= 1
            if expected <= 0:
                return
