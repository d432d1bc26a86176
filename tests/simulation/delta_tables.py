"""Delta tables in a world: what :class:`deltalake.DeltaTable` is to the product, and no more."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import CommitProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from tests.simulation.world import World

FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
SCHEMA_TEXT = json.dumps({"type": "struct", "fields": FIELDS})
_SCHEMA = Schema.from_json(SCHEMA_TEXT)
_PROTOCOL = SimpleNamespace(min_reader_version=1, min_writer_version=2, reader_features=None, writer_features=None)


@dataclass(frozen=True)
class Version:
    """A table after one commit: its files, and by app id the newest version."""

    files: tuple[str, ...]
    apps: dict[str, int]
    app: str | None = None
    """Whose version this commit has advanced."""


class MemoryTable:
    """The log of one table."""

    def __init__(self, world: World, path: str) -> None:
        self.world, self.path = world, path
        self.versions = [Version((), {})]
        self.watchers: list[Any] = []

    def handle(self, version: int | None) -> "SimulatedDeltaTable":
        return SimulatedDeltaTable(self, len(self.versions) - 1 if version is None else version)

    def append(self, version: Version) -> None:
        self.versions.append(version)
        for watcher in self.watchers:
            watcher(self)


class SimulatedDeltaTable:
    """A table as it was when it was opened."""

    def __init__(self, table: MemoryTable, at: int) -> None:
        self._table, self._at = table, at

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(id=f"id-of-{self._table.path}", configuration={}, partition_columns=[])

    def protocol(self) -> SimpleNamespace:
        return _PROTOCOL

    def schema(self) -> Schema:
        return _SCHEMA

    def version(self) -> int:
        return self._at

    def transaction_version(self, app: str) -> int | None:
        return self._table.versions[self._at].apps.get(app)

    def create_write_transaction(
        self,
        actions: Sequence[AddAction],
        mode: str,
        schema: Schema,
        *,
        partition_by: list[str],
        commit_properties: CommitProperties,
    ) -> None:
        """Commits, unless one of the app ids has been advanced since; a replacement, unless anything was committed since."""
        (advance,) = commit_properties.app_transactions or []
        table = self._table
        table.world.pause(f"commit {advance.version} to {table.path}")
        fault = table.world.fault("is done, unknown", "is not done, unknown")
        newest = table.versions[-1]
        overtaken = newest.apps.get(advance.app_id) != self.transaction_version(advance.app_id)
        if overtaken or (mode == "overwrite" and len(table.versions) - 1 != self._at):
            raise CommitFailedError("a concurrent transaction has advanced the same app id")
        if fault != "is not done, unknown":
            files = (() if mode == "overwrite" else newest.files) + tuple(unquote(action.path) for action in actions)
            table.append(Version(files, newest.apps | {advance.app_id: advance.version}, advance.app_id))
        if fault is not None:
            raise DeltaError("the answer was lost")


class Tables:
    """All tables of a world; opens them as ``DeltaTable(uri, version)`` does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_path: dict[str, MemoryTable] = {}

    def make(self, path: str) -> MemoryTable:
        """The table at ``path``, made where it is missing."""
        return self.by_path.setdefault(path, MemoryTable(self._world, path))

    def open(self, uri: str, version: int | None = None) -> SimulatedDeltaTable:
        path = unquote(urlsplit(uri).path)
        self._world.pause(f"open {path}")
        if path not in self.by_path:
            raise TableNotFoundError(f"no table at {path}")
        table = self.by_path[path]
        if version is not None and not 0 <= version < len(table.versions):
            raise DeltaError(f"no version {version}")
        return table.handle(version)
