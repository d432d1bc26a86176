"""Keeps the table of a sink's deleted keys small and verifiable.

It has as many files after years as after weeks. Each file gets a checksum file: Hadoop writes one on a local file system only, delta-rs
never. Without it an altered byte would be found only if the file cannot be parsed any more.

Each publication with deletes adds a version and files to the table. From time to time the table is *folded*, like a private log
(docs/adr/0009-private-logs-are-folded.md): small files become large ones, and the newest version gets a Delta checkpoint. Then the
versions before the previous Delta checkpoint are deleted, with the files that no version names any more.

Invariants:

1. A table is folded only if all keys of its newest version are public. So no reader begins at an older version.
2. Everything that is deleted was unneeded since the previous fold. A reader that began in between is not disturbed.
3. Files are deleted before the versions that name them, and old versions before newer ones. After a crash the next fold finds all
   leftovers, and there is no gap after the oldest checkpoint.
"""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Protocol
from urllib.parse import unquote

from spark_jobs.protocol.delta_log import DELTA_LOG, LAST_CHECKPOINT, LogListing, commit_name, version_of
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import data_files, open_table
from spark_jobs.storage.checksums import add_missing_checksums, forget_checksum
from spark_jobs.storage.files import Files, sync_below

FOLD_VERSIONS = 20
"""Number of versions that are folded at once. The table has about twice as many at most, and their files."""
_LEFT_OVER_S = 7 * 86_400.0
"""Age at which a file that no version names is deleted, as the leftover of a dead writer. Delta's ``VACUUM`` waits as long."""


class TableKeeper(Protocol):
    """The operations that only a Delta writer can do."""

    def compact(self, uri: str) -> None:
        """Merges several small files into larger ones, in one Delta commit. Large files stay."""
        ...

    def checkpoint(self, uri: str) -> None:
        """Writes a checkpoint of the log at its newest version."""
        ...


def is_due(files: Files) -> bool:
    """Returns True if a table has enough versions since its last fold. Needs one listing.

    Args:
        files: The table's directory.
    """
    listed = LogListing(files.names(DELTA_LOG))
    return listed.newest is not None and listed.newest - max(listed.checkpoints, default=-1) >= FOLD_VERSIONS


def fold(files: Files, uri: str, app: AppId, reached: CheckpointId | None, keeper: TableKeeper) -> None:
    """Folds a table. Can be repeated. No other process may publish into the sink at the same time.

    Args:
        files: The table's directory.
        uri: URI of the table.
        app: App id of the writer of deleted keys.
        reached: Newest public checkpoint of the sink.
        keeper: Writer of the table.

    Raises:
        StorageError: The storage fails, or the checkpoint was not written. The table is intact.
        OutcomeUnknownError: Spark has failed. The table is intact.
    """
    if (open_table(uri).transaction_version(app) or 0) > (reached or 0):
        return  # a publication was interrupted, so the public state before it is needed
    with step(Step.COMPACT_KEYS):
        keeper.compact(uri)
    with step(Step.FOLD_KEYS):
        keeper.checkpoint(uri)
        _check_folded(files, uri)
        sync_below(files)
    needed_from = LogListing(files.names(DELTA_LOG)).needed_from
    if needed_from is not None:
        with step(Step.TRIM_KEYS):
            _trim(files, uri, needed_from)


def add_checksums(files: Files) -> None:
    """Writes the checksums of the table's files that have none. Needs two listings and reads only those files.

    No other process may publish into the sink at the same time.

    Args:
        files: The table's directory.

    Raises:
        StorageError: The storage fails. May be repeated.
    """
    for directory in (DELTA_LOG, ""):
        add_missing_checksums(files, directory, {LAST_CHECKPOINT})


def _check_folded(files: Files, uri: str) -> None:
    """Checks that the checkpoint exists. Delta only logs it if it could not write one."""
    listed = LogListing(files.names(DELTA_LOG))
    if listed.newest not in listed.checkpoints:
        raise StorageError(
            f"Table {uri} has no checkpoint at its newest version, {listed.newest}, although one was written.",
            safe="Nothing was deleted.",
            remedy="Spark's log has the reason.",
            table=uri,
            version=listed.newest,
        )


def _trim(files: Files, uri: str, needed_from: int) -> None:
    """Deletes the versions before ``needed_from``, and the files that no later version names."""
    names = files.names(DELTA_LOG)
    commits = sorted(LogListing(names).commits)
    before = set(_files_of(files, (version for version in commits if version <= needed_from)))
    needed = set(_files_of(files, (version for version in commits if version > needed_from)))
    needed.update(path for path, _ in data_files(uri))
    for path in files.paths():
        if path.startswith(f"{DELTA_LOG}/") or not path.endswith(".parquet") or path in needed:
            continue
        if path in before or _is_left_over(files, path):
            _delete(files, path)
    for name in names:  # sorted: by version, and a checkpoint before the commit
        version = version_of(name)
        if version is not None and version < needed_from:
            _delete(files, f"{DELTA_LOG}/{name}")


def _files_of(files: Files, versions: Iterable[int]) -> Iterator[str]:
    """Returns the files that commits have added or removed."""
    for version in versions:
        for line in files.read(f"{DELTA_LOG}/{commit_name(version)}").splitlines():
            action = json.loads(line)
            for kind in {"add", "remove"} & action.keys():
                yield unquote(action[kind]["path"])


def _is_left_over(files: Files, path: str) -> bool:
    """Returns whether a file that no version names is old. In a store it stays until the sweep deletes the whole table."""
    here = files.local(path)
    return here is not None and time.time() - here.stat().st_mtime > _LEFT_OVER_S


def _delete(files: Files, path: str) -> None:
    forget_checksum(files, path)
    files.delete(path)
