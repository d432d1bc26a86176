"""Lists the files that the checkpoints of a home name, so that they can be read and compared with their records."""

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.named_files import NamedFile, NamedFiles, altered, staged_file, state_file
from spark_jobs.checkpoint.retention import kept
from spark_jobs.checkpoint.savepoint_files import OwnTable, in_flight, own_tables, staged_in
from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import manifest_path
from spark_jobs.protocol.delta_log import DELTA_LOG, commit_name
from spark_jobs.protocol.documents import CarriedActions, Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.delta_rs import data_files, open_table
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import table_files, uri_of


def named_by_home(home: Files) -> NamedFiles:
    """Returns every file that a complete checkpoint of a home names and that is still needed.

    The staged rows of a checkpoint are needed until they are public in its sink. After that the table's owner decides how long their files
    stay. State and channels are needed if the pipeline could go on from them, so not in an abandoned incarnation. Rows in flight are needed
    in the checkpoints that retention keeps: an older checkpoint may stay only for its staged rows.

    Raises:
        StorageError: The home or a table does not answer.
        UnsupportedFormatError: A newer version has written a manifest.
    """
    store = CheckpointStore(home)
    manifests = store.manifests()
    found: dict[str, NamedFile] = {}
    damage: list[CorruptDocumentError] = list(store.corrupt().values())
    damage += _lost_manifests(store, manifests)
    flying = _flying(home, manifests)
    for manifest in manifests:
        for file in _named(home, manifest, head=manifests[-1], flies=manifest.checkpoint in flying):
            if isinstance(file, CorruptDocumentError):
                damage.append(file)
            else:
                found.setdefault(file.url, file)
    return NamedFiles([manifest.checkpoint for manifest in manifests], list(found.values()), damage)


def still_damaged(home: Files, damage: Sequence[CorruptDocumentError]) -> list[CorruptDocumentError]:
    """Checks damaged files of a home again, because retention may have deleted them since they were listed.

    A manifest is deleted before the files that it names. So a missing file that is still named is damage.

    Returns:
        The files that are still damaged.

    Raises:
        StorageError: The home or a table does not answer.
    """
    paths, named = {error.evidence["path"] for error in damage}, named_by_home(home)
    documents = [error for error in named.damage if error.evidence["path"] in paths]
    return NamedFiles(named.checkpoints, [file for file in named.files if file.url in paths], documents).verify()


def _flying(home: Files, manifests: Sequence[Manifest]) -> set[CheckpointId]:
    """Returns the checkpoints whose rows in flight stay, by retention's decision on the public checkpoints of that time."""
    if not manifests:
        return set()
    head = manifests[-1]
    published = {sink: CheckpointId(_reached(cut)) for sink, cut in head.sinks.items()}
    return {manifest.checkpoint for manifest in kept(manifests, retained=_retained(home, head), published=published)}


def _retained(home: Files, head: Manifest) -> int:
    """Returns the number of retained checkpoints of the newest checkpoint's attempt, as far as the home has it."""
    try:
        return Attempts(home).read(head.attempt).checkpointing.retained
    except (NotFoundError, CorruptDocumentError):
        return 1


def _lost_manifests(store: CheckpointStore, manifests: Sequence[Manifest]) -> list[CorruptDocumentError]:
    """Returns the errors for manifests that are never discarded and are missing.

    These are the newest one by the history, and the parent of the newest existing one, which replaces a corrupt one.
    """
    taken = store.taken()
    known = {each.checkpoint for each in store.history(after=max(taken, default=0)) if each.failure is None}
    lost = known.union(manifest.parent for manifest in manifests[-1:] if manifest.parent is not None).difference(taken)
    return [altered(store.home, manifest_path(checkpoint), "a manifest", None) for checkpoint in sorted(lost)]


def _named(home: Files, manifest: Manifest, *, head: Manifest, flies: bool) -> Iterator[NamedFile | CorruptDocumentError]:
    store, goes_on = CheckpointStore(home), manifest.incarnation == head.incarnation
    for cut in manifest.stages.values() if goes_on else ():
        for file in cut.files:
            yield state_file(home, file)
        channel = NamedFile(home, cut.channel.path, sha256=cut.channel.sha256)
        yield channel
        if flies and channel.look() is None:  # otherwise its files are unknown, and its damage is found with the others
            directory = table_files(cut.channel.staged_in)
            for add in in_flight(cut.channel, store.read_channel(cut.channel)):
                yield staged_file(directory, add, unquote(add["path"]))
    for needed in own_tables(manifest) if goes_on else ():
        yield from _of_table(needed)
    for sink_cut in manifest.sinks.values():
        reached = _reached(sink_cut)
        named: list[tuple[CheckpointId, CarriedActions | SinkCut]] = [(each.last, each) for each in sink_cut.carried]
        for last, each in [*named, (manifest.checkpoint, sink_cut)]:
            yield from _rows(home, each, staged_in(sink_cut) if last > reached else None)
        for each in sink_cut.named_before:
            yield from _rows(home, each, None)
    for sink, brought in manifest.brought.items():
        for carried in brought:  # the next checkpoint names their rows in its own cut
            yield from _rows(home, carried, _staged_in(manifest, sink) if manifest is head else None)


def _rows(home: Files, each: CarriedActions | SinkCut, where: str | None) -> Iterator[NamedFile]:
    """Yields a file of actions, and the staged files that it names. Without a directory for these, they are not needed."""
    actions = NamedFile(home, each.actions.path, sha256=each.actions.sha256)
    yield actions
    if where is not None and actions.look() is None:
        directory = table_files(where)
        for add in (line["add"] for line in CheckpointStore(home).read_actions(each)):
            yield staged_file(directory, add, unquote(add["path"]))


def _staged_in(manifest: Manifest, sink: SinkName) -> str | None:
    """Returns the directory in which the stage of a sink stages its rows, before a checkpoint has a cut of the sink."""
    stages = [name for name, stage in manifest.graph["stages"].items() if stage["sink"] and stage["sink"]["name"] == sink]
    return manifest.stages[stages[0]].channel.staged_in if stages else None


def _reached(cut: SinkCut) -> int:
    """Returns the newest public checkpoint. It is the highest number if the incarnation is closed: no later one can be published."""
    try:
        return open_table(cut.table).transaction_version(cut.app) or 0
    except NotFoundError:
        return 0


def _of_table(needed: OwnTable) -> Iterator[NamedFile | CorruptDocumentError]:
    """Yields the existing files of a table of the runtime's own, and errors for those that its log lists but that are missing."""
    table = needed.table
    for version in needed.log().lacking(needed.version):
        yield altered(table.url, f"{DELTA_LOG}/{commit_name(version)}", "a version of the table", None)
    yield from needed.files()
    if needed.directory == "":
        try:
            yield from (NamedFile(table, path, size_bytes) for path, size_bytes in data_files(uri_of(table)))
        except StreamPipelineError as error:
            yield altered(table.url, DELTA_LOG, "the log of a Delta table", error.failed)
