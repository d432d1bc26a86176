"""Delta tables of a world. Their logs are files of its disk; the product itself reads and writes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from deltalake import CommitProperties, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from spark_jobs.protocol.errors import AccessDeniedError
from spark_jobs.publication.table_log import TableLog
from tests.simulation.storage import Disk, SimulatedFiles
from tests.simulation.world import Process

FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
SCHEMA_TEXT = json.dumps({"type": "struct", "fields": FIELDS})
_SCHEMA = Schema.from_json(SCHEMA_TEXT)
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_SLOW_S = 8.0


@dataclass(frozen=True)
class Version:
    """A table after one commit: its files, and the newest version of each app id."""

    files: tuple[str, ...]
    apps: dict[str, int]
    app: str | None = None
    """The app id whose version this commit has advanced."""

    def then(self, commit: bytes) -> "Version":
        """Returns the version after one more commit."""
        files, apps, app = list(self.files), dict(self.apps), None
        for action in map(json.loads, commit.splitlines()):
            if "add" in action:
                files.append(unquote(action["add"]["path"]))
            if "remove" in action:
                files.remove(unquote(action["remove"]["path"]))
            if "txn" in action:
                app = action["txn"]["appId"]
                apps[app] = action["txn"]["version"]
        return Version(tuple(files), apps, app)


class SimulatedTable:
    """One table, as its log on the disk describes it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk, self.path = disk, path
        self._versions: list[Version] = []
        metadata = {"id": f"id-of-{path}", "schemaString": SCHEMA_TEXT, "partitionColumns": [], "configuration": {}}
        disk.put(self.commit_path(0), _lines({"protocol": _PROTOCOL}, {"metaData": metadata}))

    @property
    def versions(self) -> list[Version]:
        """Returns every version. Each commit is read once, because commits never change."""
        while (commit := self.disk.get(self.commit_path(len(self._versions)))) is not None:
            before = self._versions[-1] if self._versions else Version((), {})
            self._versions.append(before.then(commit))
        return self._versions

    def commit_path(self, version: int) -> str:
        return f"{self.path}/_delta_log/{version:020}.json"


class SimulatedDeltaTable:
    """Replaces :class:`deltalake.DeltaTable`, as far as the product uses it: a table at one version, whose files are replaced."""

    def __init__(self, table: SimulatedTable, at: int) -> None:
        self._table, self._at = table, at

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(id=f"id-of-{self._table.path}")

    def schema(self) -> Schema:
        return _SCHEMA

    def get_add_actions(self) -> SimpleNamespace:
        """Returns the files, with the columns that the product reads."""
        files = self._table.versions[self._at].files
        columns = {"path": [quote(name) for name in files], "num_records": [1] * len(files)}
        return SimpleNamespace(column=lambda name: SimpleNamespace(to_pylist=lambda: columns[name]))

    def create_write_transaction(
        self,
        actions: Sequence[AddAction],
        mode: str,
        schema: Schema,
        *,
        partition_by: list[str],
        commit_properties: CommitProperties,
        post_commithook_properties: PostCommitHookProperties,
    ) -> None:
        """Commits unless another commit has been made since the table was opened."""
        assert mode == "overwrite"
        (advance,) = commit_properties.app_transactions or []
        table, disk = self._table, self._table.disk
        disk.world.pause(f"commit {advance.version} to {table.path}")
        fault = disk.world.fault("is done, unknown", "is not done, unknown")
        if len(table.versions) - 1 != self._at:
            raise CommitFailedError("a concurrent transaction was committed")
        if fault != "is not done, unknown":
            path = table.commit_path(self._at + 1)
            commit = _lines(
                *({"remove": {"path": quote(name)}} for name in table.versions[-1].files),
                *({"add": {"path": quote(action.path)}} for action in actions),
                {"txn": {"appId": advance.app_id, "version": advance.version}},
            )
            disk.put(path, commit)
            disk.watcher.created(path, commit)
        if fault is not None:
            raise DeltaError("the answer was lost")


class _LogFiles(SimulatedFiles):
    """The log of a table. A create in it is a commit, which the table may refuse."""

    def __init__(self, tables: "Tables", path: str) -> None:
        super().__init__(tables.disk, f"{path}/_delta_log")
        self._tables, self._table_path = tables, path

    def create(self, path: str, data: bytes) -> None:
        if self._tables.slow:
            world = self._tables.disk.world
            world.sleep(world.random.uniform(0.0, _SLOW_S))
        self._tables.check(self._table_path)
        super().create(path, data)
        self._tables.accepts(self._table_path)

    def _point(self, operation: str, path: str) -> None:
        super()._point("commit" if operation == "create" else operation, f"{path} of {self._root}")


class Tables:
    """All tables of a world."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.by_path: dict[str, SimulatedTable] = {}
        self.refusing: str | None = None
        """The path of the table that refuses commits now."""
        self.slow = False
        """True if publications take longer than the interval of checkpoints."""
        self.refused: dict[Process, tuple[str, float]] = {}
        """For each process: the table that refused it last, and the time."""
        self.still_refusing: set[tuple[Process, str]] = set()
        """The processes and the tables that refused the newest commit of this process."""
        self._logs: dict[tuple[Process | None, str], TableLog] = {}

    def check(self, path: str) -> None:
        """Raises an error if the table refuses commits now.

        Raises:
            AccessDeniedError: The table refuses commits.
        """
        if path == self.refusing:
            current = self.disk.world.current
            assert current is not None
            self.refused[current.process] = (path, self.disk.world.clock_s)
            self.still_refusing.add((current.process, path))
            self.disk.world.trace.append(f"{current.name}: {path} refuses")
            raise AccessDeniedError(f"The storage of table {path} refuses.", remedy="Allow it.", table=path)

    def accepts(self, path: str) -> None:
        """Records that the table has accepted a commit of the current process."""
        current = self.disk.world.current
        if current is not None:
            self.still_refusing.discard((current.process, path))

    def make(self, path: str) -> SimulatedTable:
        """Returns the table at ``path``. Creates it if it does not exist."""
        if path not in self.by_path:
            self.by_path[path] = SimulatedTable(self.disk, path)
        return self.by_path[path]

    def log_of(self, uri: str) -> TableLog:
        """Replaces :func:`spark_jobs.publication.delta_rs.log_of`. Each process has its own memory of the logs."""
        actor, path = self.disk.world.current, unquote(urlsplit(uri).path)
        process = None if actor is None else actor.process
        if (process, path) not in self._logs:
            self._logs[process, path] = TableLog(_LogFiles(self, path), uri)
        return self._logs[process, path]

    def open(self, uri: str, version: int | None = None, storage_options: None = None) -> SimulatedDeltaTable:
        """Replaces ``DeltaTable(uri, version)``."""
        path = unquote(urlsplit(uri).path)
        self.disk.world.pause(f"open {path}")
        if path not in self.by_path:
            raise TableNotFoundError(f"no table at {path}")
        table = self.by_path[path]
        if version is None:
            version = len(table.versions) - 1
        if version >= len(table.versions):
            raise DeltaError(f"no version {version}")
        return SimulatedDeltaTable(table, version)


def _lines(*actions: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
