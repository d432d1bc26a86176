"""Which files of a home, and of its tables, a savepoint has, and where it has them.

What is below the home keeps its path, except that each stage's staged files are in ``staged/<stage>/`` and each sink's deleted keys in
``tombstones/<sink>/``, whichever incarnation and table they were for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.home.layout import CHECKPOINTS, MANIFESTS, STATE, TOMBSTONES, manifest_path
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import CarriedActions, Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, SinkName, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.storage.files import Digest, Files, local_path
from spark_jobs.storage.open import open_files

STAGED = "staged"
PARTS = (MANIFESTS, CHECKPOINTS, STATE, STAGED, TOMBSTONES)
"""The directories of a savepoint."""
_LOG = "_delta_log"


@dataclass(frozen=True)
class NeededFile:
    """A file that is to be copied."""

    source: Files
    path: str
    """Where it has it."""
    size_bytes: int | None = None
    """As the manifest, or what it names, says; None where nothing says it."""
    sha256: str | None = None

    def is_right(self, found: Digest) -> bool:
        """Whether these are the bytes of the file, as far as that is known."""
        return found == (found.size_bytes if self.size_bytes is None else self.size_bytes, self.sha256 or found.sha256)


def needed_files(home: Files, manifest: Manifest) -> dict[str, NeededFile]:
    """By its path in the savepoint each file that a restore of a checkpoint needs, or a publication of what it holds.

    Reads the documents that name them; whether the files are as named is found out when they are copied.

    Args:
        home: The home.
        manifest: A checkpoint of it.

    Raises:
        RejectedError: The checkpoint can be continued in its work directory alone.
        CorruptDocumentError: A manifest, a file of actions or one of a channel is gone or was altered.
    """
    channels = {name: _channel(manifest, name) for name in manifest.stages}
    store = CheckpointStore(home)
    found: dict[str, NeededFile] = {}
    for name, cut in manifest.stages.items():
        for file in cut.files:
            found[file.stored] = NeededFile(home, file.stored, file.size_bytes, file.sha256)
        found[channels[name].path] = NeededFile(home, channels[name].path, sha256=channels[name].sha256)
        found |= dict(_in_flight(home, name, channels[name]))
    for each in pending_manifests(store, manifest):
        path = manifest_path(each.checkpoint)
        found[path] = NeededFile(home, path, sha256=sha256(home.read(path)))
    for sink, sink_cut in manifest.sinks.items():
        for actions in pending_actions(store, manifest, sink):
            found[actions.actions.path] = NeededFile(home, actions.actions.path, sha256=actions.actions.sha256)
            found |= dict(_staged(home, sink_cut, actions))
    for name in manifest.stages:
        found |= dict(_own_table(manifest, name, channels[name]))
    for sink, sink_cut in manifest.sinks.items():
        if sink_cut.upsert and sink_cut.upsert.tombstones:
            graves = open_files(sink_cut.upsert.tombstones)
            _check_table(graves)
            found |= dict(_all_below(graves, f"{TOMBSTONES}/{sink}"))
    return found


def pending_manifests(store: CheckpointStore, manifest: Manifest) -> list[Manifest]:
    """A checkpoint and those before it that were not known to be public in every sink when it was taken, newest first.

    One that is gone was public: nothing else is discarded.

    Raises:
        CorruptDocumentError: One of them cannot be used.
    """
    found = [manifest]
    ancestry = store.ancestry(manifest.checkpoint)
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
    """How many rows a savepoint has for a sink that were not known to be public when it was taken.

    Args:
        files: The savepoint.
        manifest: Its manifest.
        sink: One of its sinks.
        after: A checkpoint that is known to be public by now, with all before it.

    Raises:
        CorruptDocumentError: A manifest of it cannot be used.
    """
    return sum(each.actions.rows for each in pending_actions(CheckpointStore(files), manifest, sink, after))


def pending_actions(store: CheckpointStore, manifest: Manifest, sink: SinkName, after: int = 0) -> list[SinkCut | CarriedActions]:
    """What names the rows for a sink that were not known to be public when ``manifest`` was made, oldest first; as :func:`pending_rows`."""
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
    """Whether a checkpoint of the chain was not known to be public in a sink when ``manifest`` was made; ``manifest`` itself never was."""
    known = manifest.sinks[sink].known_published if sink in manifest.sinks else manifest.checkpoint
    return known is None or checkpoint > known


def staged_in(cut: SinkCut) -> str:
    """The URI of the directory that the paths of a sink's actions are relative to."""
    return cut.upsert.staged_in if cut.upsert else cut.table


def staged_path(stage: StageName, add: Mapping[str, Any]) -> str:
    """Where a savepoint has a staged file."""
    return f"{STAGED}/{stage}/{unquote(add['path'])}"


def in_flight(cut: ChannelCut, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files of a channel that its slowest consumer had not consumed, as Delta's ``add`` actions: the last ones, by their size."""
    found: list[dict[str, Any]] = []
    left = cut.in_flight_size_bytes
    for line in reversed(lines):
        if left <= 0:
            break
        found += line["adds"]
        left -= sum(int(add["size"]) for add in line["adds"])
    return found


def _channel(manifest: Manifest, name: StageName) -> ChannelCut:
    channel = manifest.stages[name].channel
    if channel is None:
        raise RejectedError(
            f"Checkpoint {manifest.checkpoint} does not hold the state of stage '{name}'.",
            exists="It was made to be continued in its work directory.",
            safe="Nothing was written.",
            remedy="Take a savepoint while the pipeline runs: spark-jobs savepoint, or spark-jobs stop.",
            checkpoint=manifest.checkpoint,
            stage=name,
        )
    return channel


def _in_flight(home: Files, stage: StageName, cut: ChannelCut) -> Iterator[tuple[str, NeededFile]]:
    source = open_files(cut.staged_in)
    with _named_by_manifest(home, cut.path):
        lines = CheckpointStore(home).read_channel(cut)
    for add in in_flight(cut, lines):
        yield staged_path(stage, add), NeededFile(source, unquote(add["path"]), int(add["size"]))


def _staged(home: Files, cut: SinkCut, actions: SinkCut | CarriedActions) -> Iterator[tuple[str, NeededFile]]:
    source = open_files(staged_in(cut))
    with _named_by_manifest(home, actions.actions.path):
        lines = CheckpointStore(home).read_actions(actions)
    for add in (line["add"] for line in lines):
        yield staged_path(cut.stage, add), NeededFile(source, unquote(add["path"]), int(add["size"]))


@contextmanager
def _named_by_manifest(home: Files, path: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise altered(home.url, path, "the file that the manifest names", None) from error


def _own_table(manifest: Manifest, stage: StageName, channel: ChannelCut) -> Iterator[tuple[str, NeededFile]]:
    """What the runtime's own table says where a stage's files are not in a public one: names of columns, constraints."""
    if all(cut.stage != stage or cut.upsert for cut in manifest.sinks.values()):
        table = open_files(channel.staged_in)
        _check_table(table)
        yield from _all_below(table.below(_LOG), f"{STAGED}/{stage}/{_LOG}")


def _check_table(table: Files) -> None:
    """Refuses a table whose log is gone: it would be copied as an empty one, and nobody would learn of it before the start."""
    if not any(name.endswith(".json") for name in table.names(_LOG)):
        raise altered(table.url, _LOG, "the log of a Delta table", None)


def _all_below(source: Files, place: str) -> Iterator[tuple[str, NeededFile]]:
    """A Delta table, its log first: what is there when the log was read names files that are there afterwards."""
    for path in sorted(source.paths(), key=lambda path: not path.startswith(_LOG)):
        here = local_path(source, path)
        if not here.name.startswith(".") and not here.is_dir():  # Delta makes some that stay empty
            yield f"{place}/{path}", NeededFile(source, path)


def altered(root: str, path: str, expected: object, found: object) -> CorruptDocumentError:
    """What is raised for a file that is not the one that a document names; ``found`` None: it is gone."""
    what = "is gone" if found is None else f"was altered: expected {expected}, found {found}"
    return CorruptDocumentError(
        f"{root}/{path} {what}.",
        safe="It was not used, and nothing was changed.",
        remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=f"{root}/{path}",
        expected=expected,
        found=found,
    )
