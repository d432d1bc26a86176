"""Decides which checkpoints can be discarded, and deletes them with their files.

Invariants:

1. A file of state, of actions or of a channel is deleted only if no manifest names it (model rule ``gcnames``), and only if the number of
   the try that wrote it is settled: a valid manifest has this number or a higher one. Files of a failed try stay until then (model rule
   ``failkeep``), because its manifest may still be created.
2. A manifest is deleted before the files that it names, so that no manifest names missing files. After a crash no manifest names the
   leftovers, and the next call deletes them.
3. A corrupt manifest is never discarded, and the files of tries with its number stay.
4. A kept checkpoint is complete: a restore or a publication finds all files that it names.
5. A directory of state files that also contains something else, such as a table (:mod:`spark_jobs.home.places`), stays with all its files.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from spark_jobs.checkpoint.carried import covers, names_of
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.home.layout import CHECKPOINTS, STATE, STATE_TRY_PARTS, checkpoint_of, manifest_path, state_path, state_try
from spark_jobs.home.places import has_others
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, InvalidParameterError
from spark_jobs.protocol.ids import BatchId, CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files


def kept(
    manifests: Sequence[Manifest],
    *,
    retained: int,
    published: Mapping[SinkName, CheckpointId | None],
    needed: Container[CheckpointId] = (),
) -> list[Manifest]:
    """Returns the checkpoints that may still be continued, published or copied, ascending. Their files are kept.

    Of the head's incarnation these are the newest ones, the head's parent, which replaces a corrupt head, and those that some sink's table
    has not reached, unless the head carries their files for it. One of these may have no rows of the sink, because a savepoint has brought
    it: a publication reads the chain back to it. Of all incarnations these are the ones in ``needed``.

    Args:
        manifests: All valid manifests, ascending. The last one is the head.
        retained: Number of checkpoints of the head's incarnation to keep, at least 1.
        published: Newest public checkpoint of the head's incarnation, by sink.
        needed: Checkpoints for pending savepoints, and the one that readers of several tables see.

    Raises:
        InvalidParameterError: ``retained`` is less than 1.
    """
    if retained < 1:
        raise InvalidParameterError(
            f"{retained} checkpoints cannot be retained: without the newest one the pipeline could not be restored.",
            safe="Nothing was deleted.",
            remedy="Retain 1 or more.",
            found=retained,
        )
    if not manifests:
        return []
    head = manifests[-1]
    line = [manifest for manifest in manifests if manifest.incarnation == head.incarnation]
    stay = {*(manifest.checkpoint for manifest in line[-retained:]), head.parent}
    stay |= {
        each.checkpoint
        for each in line
        if any(not _is_public(each, sink, published) and not _is_carried(each, sink, head) for sink in head.sinks)
    }
    return [manifest for manifest in manifests if manifest.checkpoint in stay or manifest.checkpoint in needed]


def discardable(
    manifests: Sequence[Manifest],
    kept: Iterable[Manifest],
    *,
    remembered: Mapping[StageName, BatchId],
    published: Mapping[SinkName, CheckpointId | None],
    closed: Container[IncarnationId] = (),
) -> list[CheckpointId]:
    """Returns the checkpoints that are not needed any more, ascending.

    Besides the kept ones these stay: checkpoints that name files of batches that a private log still has, unless the head names these
    files, too; checkpoints that an earlier incarnation may still publish; and checkpoints of an earlier incarnation until the head's has
    published, because a fresh start finds the public rows through them. Checkpoints of savepoints and stops are discarded like others,
    because a savepoint is a copy. So are final checkpoints: the answer of each run of the round is kept first.

    Args:
        manifests: All valid manifests, ascending. The last one is the head.
        kept: Result of :func:`kept`.
        remembered: First batch in the private log of each stage.
        published: As for :func:`kept`.
        closed: Incarnations that cannot publish any more.
    """
    stay = {manifest.checkpoint for manifest in kept}
    return [
        manifest.checkpoint
        for manifest in manifests
        if manifest.checkpoint not in stay
        and (
            (manifest.incarnation in closed and _is_succeeded(manifest, manifests[-1], published))
            or (manifest.incarnation == manifests[-1].incarnation and not _tells_alone(manifest, manifests[-1], remembered))
        )
    ]


def discard(home: Files, checkpoints: Iterable[CheckpointId]) -> list[str]:
    """Deletes checkpoints and the files that only they name, durably. Can be repeated.

    Args:
        home: The home.
        checkpoints: Result of :func:`discardable`; empty to delete leftovers only.

    Returns:
        The deleted files and directories of state files.

    Raises:
        StorageError: Not everything was deleted. Repeat.
        UnsupportedFormatError: A newer version has written a manifest, whose files are unknown. No file that it could name was deleted.
    """
    for checkpoint in checkpoints:
        with step(Step.DISCARD):
            home.delete(manifest_path(checkpoint))
    return _sweep(home)


def in_flight_from(manifests: Iterable[Manifest], stage: StageName) -> BatchId | None:
    """Returns the first batch of a stage whose staged files the channels of these checkpoints name, or None.

    A private log deletes the files of batches that it deletes. It must keep this batch and all later ones.
    """
    return min((manifest.stages[stage].channel.first for manifest in manifests if stage in manifest.stages), default=None)


def unpublished_from(
    manifests: Sequence[Manifest], published: Mapping[SinkName, CheckpointId | None], stage: StageName
) -> BatchId | None:
    """Returns the first batch of a stage with unpublished rows in the head's incarnation, or None.

    Args:
        manifests: All valid manifests, ascending. The last one is the head.
        published: As for :func:`kept`.
        stage: The stage.
    """
    line = [manifest for manifest in manifests if manifest.incarnation == manifests[-1].incarnation]
    lacking = (
        (manifest, cut)
        for manifest in line
        for sink, cut in manifest.sinks.items()
        if cut.stage == stage and not _is_public(manifest, sink, published)
    )
    first, cut = next(lacking, (None, None))
    if first is None or cut is None:
        return None
    if cut.carried:
        return BatchId(0)  # the savepoint of the incarnation has rows of batches before its cut
    parent = next((manifest for manifest in line if manifest.checkpoint == first.parent), None)
    return BatchId(parent.stages[stage].batch + 1) if parent and stage in parent.stages else BatchId(0)


def _is_public(manifest: Manifest, sink: SinkName, published: Mapping[SinkName, CheckpointId | None]) -> bool:
    return (published.get(sink) or 0) >= manifest.checkpoint


def _is_succeeded(manifest: Manifest, head: Manifest, published: Mapping[SinkName, CheckpointId | None]) -> bool:
    """Returns True if the head's incarnation has published into all sinks that it shares with a checkpoint of an earlier one."""
    return all(published.get(sink) is not None for sink in manifest.sinks.keys() & head.sinks.keys())


def _is_carried(manifest: Manifest, sink: SinkName, head: Manifest) -> bool:
    """Returns True if a checkpoint is published in a sink together with the head, which carries its files or replaces its rows.

    The sink's rows become public by round, and the checkpoint was not public when the head was taken: the head carries only unpublished
    files. The last checkpoint of a round does not count: it may still be published by itself, and its run waits for it.
    """
    return (
        manifest.checkpoint < head.checkpoint
        and (manifest.is_published_by_round(sink) or sink not in manifest.sinks)
        and not manifest.ends_round
        and head.is_published_by_round(sink)
        and manifest.checkpoint > (head.sinks[sink].known_published or 0)
    )


def _tells_alone(manifest: Manifest, head: Manifest, remembered: Mapping[StageName, BatchId]) -> bool:
    """Returns True if a checkpoint names files of batches that a private log still has, and the head does not name them.

    The head need not name files that it replaces: they never become public.
    """
    return any(
        each.batch >= remembered.get(cut.stage, BatchId(0)) and not covers(names_of(head, sink), each)
        for sink, cut in manifest.sinks.items()
        if not _is_carried(manifest, sink, head)
        for each in names_of(manifest, sink)
    )


def _sweep(home: Files) -> list[str]:
    """Deletes files of settled tries that no manifest names."""
    store = CheckpointStore(home)
    manifests: list[Manifest] = []
    corrupt: set[CheckpointId] = set()
    for checkpoint in store.taken():
        try:
            manifests.append(store.manifest(checkpoint))
        except CorruptDocumentError:
            corrupt.add(checkpoint)
    if not manifests:
        return []
    named = set(chain.from_iterable(map(_named_files, manifests)))
    in_use = {"/".join(path.split("/")[:STATE_TRY_PARTS]) for path in named}
    deleted = _sweep_files(home, manifests[-1].checkpoint, corrupt, named)
    for place in _settled(home, manifests[-1].checkpoint, corrupt):
        paths = home.paths(place)
        if has_others(home, paths):
            continue
        for path in [place] if place not in in_use else [path for path in paths if path not in named]:
            with step(Step.DISCARD):
                home.delete(path)
            deleted.append(path)
    return deleted


def _named_files(manifest: Manifest) -> Iterator[str]:
    """Yields the files of a home that a manifest names."""
    for cut in manifest.sinks.values():
        yield cut.actions.path
        yield from (each.actions.path for each in (*cut.carried, *cut.named_before))
    for brought in manifest.brought.values():
        yield from (each.actions.path for each in brought)
    for stage in manifest.stages.values():
        yield from (file.stored for file in stage.files)
        yield stage.channel.path


def _sweep_files(home: Files, head: CheckpointId, corrupt: Container[CheckpointId], named: Container[str]) -> list[str]:
    """Deletes unnamed files of actions and of channels."""
    deleted = []
    for name in home.names(CHECKPOINTS):
        number, path = checkpoint_of(name), f"{CHECKPOINTS}/{name}"
        if number is not None and number <= head and number not in corrupt and path not in named:
            with step(Step.DISCARD):
                home.delete(path)
            deleted.append(path)
    return deleted


def _settled(home: Files, head: CheckpointId, corrupt: Container[CheckpointId]) -> Iterator[str]:
    """Yields the directories of state files whose tries are settled: see the first and the third invariant."""
    for stage in map(StageName, home.names(STATE)):
        for name in home.names(f"{STATE}/{stage}"):
            tried = state_try(name)
            if tried and tried.checkpoint <= head and tried.checkpoint not in corrupt:
                yield state_path(stage, *tried)
