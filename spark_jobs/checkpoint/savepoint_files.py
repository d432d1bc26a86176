"""Finds the files of a home and its tables that a savepoint contains, and their paths in it.

Files below the home keep their paths. Only the staged files of each stage are in ``staged/<stage>/``, and the deleted keys of each sink in
``tombstones/<sink>/``, for every incarnation and table.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.named_files import NamedFile, altered, staged_file, state_file
from spark_jobs.home.layout import CHECKPOINTS, MANIFESTS, STAGED, STATE, TOMBSTONES, manifest_path
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.delta_log import DELTA_LOG, LAST_CHECKPOINT, LogListing
from spark_jobs.protocol.documents import CarriedActions, Manifest, SinkCut
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import CheckpointId, SinkName, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.storage.checksums import checksum_path
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import table_files

PARTS = (MANIFESTS, CHECKPOINTS, STATE, STAGED, TOMBSTONES)
"""The directories of a savepoint."""


def needed_files(home: Files, manifest: Manifest) -> dict[str, NamedFile]:
    """Returns the files that a restore of a checkpoint, or a publication of its rows, needs, by their path in the savepoint.

    Reads the documents that name them. The files are checked when they are copied.

    Args:
        home: The home.
        manifest: A checkpoint of it.

    Raises:
        CorruptDocumentError: A manifest, a file of actions or a file of a channel is missing or was altered.
    """
    store = CheckpointStore(home)
    found: dict[str, NamedFile] = {}
    for name, cut in manifest.stages.items():
        for file in cut.files:
            found[file.stored] = state_file(home, file)
        found[cut.channel.path] = NamedFile(home, cut.channel.path, sha256=cut.channel.sha256)
        found |= dict(_in_flight(home, name, cut.channel))
    for each in pending_manifests(store, manifest):
        path = manifest_path(each.checkpoint)
        found[path] = NamedFile(home, path, sha256=sha256(home.read(path)))
    for sink, sink_cut in manifest.sinks.items():
        for actions in pending_actions(store, manifest, sink):
            found[actions.actions.path] = NamedFile(home, actions.actions.path, sha256=actions.actions.sha256)
            found |= dict(_staged(home, sink_cut, actions))
    for own in own_tables(manifest):
        if not own.log().commits:  # it would be copied as an empty table, and only a start would notice
            raise altered(own.table.url, DELTA_LOG, "the log of a Delta table", None)
        found |= {f"{own.place}/{file.path}": file for file in (*own.files(), *own.checksums())}
    return found


@dataclass(frozen=True)
class OwnTable:
    """A Delta table of the runtime's own that a checkpoint needs."""

    table: Files
    place: str
    """The table's place in a savepoint."""
    directory: str = ""
    """The needed part of the table: everything for deleted keys, or only the log, which names a stage's staged files."""
    version: int = 0
    """The newest version at the cut, if it is recorded."""

    def log(self) -> LogListing:
        """Returns the existing part of its log: from the beginning, or from where it was trimmed."""
        return LogListing(self.table.names(DELTA_LOG))

    def files(self) -> list[NamedFile]:
        """Returns the files, those of the log first: a log that is read first only names files that exist afterwards.

        Old files may be deleted in the meantime. Delta's hint at a checkpoint, which is overwritten, is left out.
        """
        found = []
        for path in sorted(self.table.paths(self.directory), key=lambda path: not path.startswith(DELTA_LOG)):
            name = path.rpartition("/")[2]
            # Delta creates directories that stay empty
            if not name.startswith(".") and name != LAST_CHECKPOINT and self.table.size_bytes(path) is not None:
                found.append(NamedFile(self.table, path))
        return found

    def checksums(self) -> list[NamedFile]:
        """Returns Hadoop's checksum files of the table's files. No document has their hashes."""
        paths = (checksum_path(file.path) for file in self.files())
        return [NamedFile(self.table, path) for path in paths if self.table.size_bytes(path) is not None]


def own_tables(manifest: Manifest) -> Iterator[OwnTable]:
    """Returns the Delta tables of the runtime's own that a checkpoint needs."""
    for name, cut in manifest.stages.items():
        if all(sink.stage != name or sink.merge for sink in manifest.sinks.values()):
            yield OwnTable(table_files(cut.channel.staged_in), f"{STAGED}/{name}", DELTA_LOG)
    for sink, sink_cut in manifest.sinks.items():
        if sink_cut.merge and sink_cut.merge.tombstones:
            version = sink_cut.merge.tombstones_version
            yield OwnTable(table_files(sink_cut.merge.tombstones), f"{TOMBSTONES}/{sink}", version=version)


def pending_manifests(store: CheckpointStore, manifest: Manifest) -> list[Manifest]:
    """Returns a checkpoint and the earlier ones that were not known to be public in all sinks when it was taken, newest first.

    A missing one was public or its files are carried, because others are not discarded.

    Raises:
        CorruptDocumentError: One of them cannot be used.
    """
    found = [manifest]
    ancestry = store.ancestry(manifest)
    next(ancestry)
    while (parent := found[-1].parent) is not None and any(is_pending(manifest, sink, parent) for sink in manifest.sinks):
        try:
            ancestor = next(ancestry, None)
        except NotFoundError:
            ancestor = None
        if ancestor is None:
            break
        found.append(ancestor)
    return found


def pending_rows(files: Files, manifest: Manifest, sink: SinkName, after: int = 0) -> int:
    """Returns the number of a savepoint's rows for a sink that were not known to be public when it was taken.

    Args:
        files: The savepoint.
        manifest: Its manifest.
        sink: One of its sinks.
        after: Checkpoint that is known to be public now, with all earlier ones.

    Raises:
        CorruptDocumentError: A manifest of it cannot be used.
    """
    return sum(each.actions.rows for each in pending_actions(CheckpointStore(files), manifest, sink, after))


def pending_actions(store: CheckpointStore, manifest: Manifest, sink: SinkName, after: int = 0) -> list[SinkCut | CarriedActions]:
    """Returns the cuts with the rows for a sink that were not known to be public when ``manifest`` was taken, oldest first."""
    cut = manifest.sinks[sink]
    if cut.carried:
        return [*(each for each in cut.carried if each.last > after), cut]
    found = pending_manifests(store, manifest)[::-1]
    return [
        each.sinks[sink]
        for each in found
        if sink in each.sinks and is_pending(manifest, sink, each.checkpoint) and each.checkpoint > after
    ]


def is_pending(manifest: Manifest, sink: SinkName, checkpoint: CheckpointId) -> bool:
    """Returns True if a checkpoint of the chain was not known to be public in a sink when ``manifest`` was taken.

    ``manifest`` itself is always pending.
    """
    known = manifest.sinks[sink].known_published if sink in manifest.sinks else manifest.checkpoint
    return known is None or checkpoint > known


def staged_in(cut: SinkCut) -> str:
    """Returns the URI of the directory that the paths of a sink's actions are relative to."""
    return cut.merge.staged_in if cut.merge else cut.table


def staged_path(stage: StageName, add: Mapping[str, Any]) -> str:
    """Returns the path of a staged file in a savepoint."""
    return f"{STAGED}/{stage}/{unquote(add['path'])}"


def in_flight(cut: ChannelCut, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the files of a channel that its slowest consumer had not read, as Delta's ``add`` actions: the last ones, by size."""
    found: list[dict[str, Any]] = []
    left = cut.in_flight_size_bytes
    for line in reversed(lines):
        if left <= 0:
            break
        found += line["adds"]
        left -= sum(int(add["size"]) for add in line["adds"])
    return found


def _in_flight(home: Files, stage: StageName, cut: ChannelCut) -> Iterator[tuple[str, NamedFile]]:
    source = table_files(cut.staged_in)
    with _named_by_manifest(home, cut.path):
        lines = CheckpointStore(home).read_channel(cut)
    for add in in_flight(cut, lines):
        yield staged_path(stage, add), staged_file(source, add, unquote(add["path"]))


def _staged(home: Files, cut: SinkCut, actions: SinkCut | CarriedActions) -> Iterator[tuple[str, NamedFile]]:
    source = table_files(staged_in(cut))
    with _named_by_manifest(home, actions.actions.path):
        lines = CheckpointStore(home).read_actions(actions)
    for add in (line["add"] for line in lines):
        yield staged_path(cut.stage, add), staged_file(source, add, unquote(add["path"]))


@contextmanager
def _named_by_manifest(home: Files, path: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise altered(home.url, path, "the file that the manifest names", None) from error
