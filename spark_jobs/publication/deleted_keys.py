"""Keeps the table in which a sink remembers deleted keys small: it has as many files after years as after weeks.

Each publication with deletes adds a version to the table's log, and files. Now and then the table is *folded*, as a private log is
(docs/adr/0009-private-logs-are-folded.md): small files become large ones, and a Delta checkpoint is put at the newest version. What the
checkpoint before that has made needless is deleted: versions, and files that no version has any more.

Invariants:

1. A table is folded only when its newest version buries nothing that is not public. So nobody begins with a version before that one.
2. What goes has been needless since the fold before: whoever has begun to read the table meanwhile reads on.
3. Files go before the versions that name them, and old versions before newer ones: a crash leaves nothing that the next fold does not find,
   and no gap after the oldest checkpoint.
"""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Protocol
from urllib.parse import unquote

from spark_jobs.protocol.delta_log import DELTA_LOG, LogListing, commit_name, version_of
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import data_files, open_table
from spark_jobs.storage.checksums import forget_checksum
from spark_jobs.storage.files import Files, sync_below

FOLD_VERSIONS = 20
"""So many versions are folded at once: the table has at most about twice as many, and the files that these name."""
_LEFT_OVER_S = 7 * 86_400.0
"""A file that no version names, and that is older, was left by a writer that died. Delta's ``VACUUM`` waits as long."""


class TableKeeper(Protocol):
    """Does what only a writer of Delta can do."""

    def compact(self, uri: str) -> None:
        """Puts the rows of small files into larger ones, in one Delta commit, if there are several. Files that are large enough stay."""
        ...

    def checkpoint(self, uri: str) -> None:
        """Writes a checkpoint of the log at its newest version."""
        ...


def is_due(files: Files) -> bool:
    """Returns whether a table has so many versions since it was folded last that it should be folded. One listing.

    Args:
        files: The table's directory.
    """
    listed = LogListing(files.names(DELTA_LOG))
    return listed.newest is not None and listed.newest - max(listed.checkpoints, default=-1) >= FOLD_VERSIONS


def fold(files: Files, uri: str, app: AppId, reached: CheckpointId | None, keeper: TableKeeper) -> None:
    """Folds a table; may be repeated. Nobody else may publish into the sink meanwhile.

    Args:
        files: The table's directory.
        uri: The same.
        app: Who buries in it.
        reached: The newest checkpoint that is public in the sink.
        keeper: Writes into the table.

    Raises:
        StorageError: The storage fails, or the checkpoint was not written. The table is whole.
        OutcomeUnknownError: Spark has failed. The table is whole.
    """
    if (open_table(uri).transaction_version(app) or 0) > (reached or 0):
        return  # a publication that was interrupted: what was public before it is needed
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


def _check_folded(files: Files, uri: str) -> None:
    """Delta only logs that it could not write a checkpoint."""
    listed = LogListing(files.names(DELTA_LOG))
    if listed.newest not in listed.checkpoints:
        raise StorageError(
            f"Table {uri} has no checkpoint at its newest version, {listed.newest}, although one was written.",
            safe="Nothing was deleted.",
            remedy="See Spark's log for the reason.",
            table=uri,
            version=listed.newest,
        )


def _trim(files: Files, uri: str, needed_from: int) -> None:
    """Deletes the versions before one, and the files that no version from it on has."""
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
