"""Decides which checkpoints may go, and deletes what goes with them.

Invariants:

1. A file of state, of actions or of a channel goes only if no manifest names it (model rule ``gcnames``), and only if the number of the try
   that has written it is settled: a valid manifest has it, or a higher one. What a failed try has written stays until then (model rule
   ``failkeep``), because its manifest may still come to exist.
2. A manifest goes before what it names: nobody finds one that names what is gone. What a crash leaves then is named by nothing, and goes
   the next time.
3. A corrupt manifest is never discarded, and what tries at its number have written stays.
4. A kept checkpoint is kept whole: whoever goes on from it, or publishes it, finds all that it names.
5. A directory of state files in which another thing is (:mod:`spark_jobs.home.places`) stays, with all that is in it.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from spark_jobs.checkpoint.carried import covers, names_of
from spark_jobs.checkpoint.store import CheckpointStore
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
    """Returns the checkpoints that somebody may go on from, publish or copy, ascending; nothing that they name may go.

    These are, of the head's incarnation, the newest ones, the head's parent, which takes its place if the head turns out corrupt, and
    those that are not public in some sink, unless the head carries their files for it. Of any incarnation those that are needed besides.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
        retained: How many of the head's incarnation stay, at least 1.
        published: By sink the newest checkpoint of the head's incarnation that is public.
        needed: Those that savepoints are still to be made of, and the one that readers of several tables see.

    Raises:
        InvalidParameterError: ``retained`` is less than 1.
    """
    if retained < 1:
        raise InvalidParameterError(
            f"{retained} checkpoints cannot be retained: without the newest one there is no way back.",
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
        if any(not _is_public(each, sink, published) and not _is_carried(each, sink, head) for sink in each.sinks)
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
    """Returns the checkpoints that nobody needs any more, ascending.

    What stays beside those that are kept: what names files of batches that a private log has not forgotten, unless the head names these
    files, too; what an earlier incarnation may still publish; and the checkpoints of an earlier incarnation until the head's has published,
    because they tell a fresh start which rows are public. What was taken for a savepoint or a stop goes like any other, because the
    savepoint is a copy. So does a final checkpoint: whoever discards it first keeps the answer of each run of its round.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
        kept: Those of them that :func:`kept` has found.
        remembered: By stage the first batch that its private log has not forgotten.
        published: As for :func:`kept`.
        closed: Incarnations into whose tables nothing can be published any more.
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
    """Deletes checkpoints and the files that they alone have named, durably; may be repeated.

    Args:
        home: The home.
        checkpoints: Those that :func:`discardable` has found; none, to finish what was left.

    Returns:
        The files that went, and whole directories of state files.

    Raises:
        StorageError: Not everything was deleted; repeat.
        UnsupportedFormatError: A newer version has written a manifest: nobody knows what it names. Nothing that it could name was deleted.
    """
    for checkpoint in checkpoints:
        with step(Step.DISCARD):
            home.delete(manifest_path(checkpoint))
    return _sweep(home)


def in_flight_from(manifests: Iterable[Manifest], stage: StageName) -> BatchId | None:
    """Returns the first batch of a stage whose staged files the channels of these checkpoints name; None if they name none.

    A private log that forgets a batch deletes its files: never one from here on.
    """
    return min((manifest.stages[stage].channel.first for manifest in manifests if stage in manifest.stages), default=None)


def unpublished_from(
    manifests: Sequence[Manifest], published: Mapping[SinkName, CheckpointId | None], stage: StageName
) -> BatchId | None:
    """Returns the first batch of a stage with rows in a checkpoint of the head's incarnation that its sink has not; None if there is none.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
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
        return BatchId(0)  # the savepoint that the incarnation began with had rows of batches before its cut
    parent = next((manifest for manifest in line if manifest.checkpoint == first.parent), None)
    return BatchId(parent.stages[stage].batch + 1) if parent and stage in parent.stages else BatchId(0)


def _is_public(manifest: Manifest, sink: SinkName, published: Mapping[SinkName, CheckpointId | None]) -> bool:
    return (published.get(sink) or 0) >= manifest.checkpoint


def _is_succeeded(manifest: Manifest, head: Manifest, published: Mapping[SinkName, CheckpointId | None]) -> bool:
    """Returns whether the head's incarnation has published into each sink that it has in common with a checkpoint of an earlier one."""
    return all(published.get(sink) is not None for sink in manifest.sinks.keys() & head.sinks.keys())


def _is_carried(manifest: Manifest, sink: SinkName, head: Manifest) -> bool:
    """Returns whether a checkpoint is published in a sink with the head, which carries its files or replaces its rows.

    The sink's rows become public by round, and the checkpoint was not public when the head was made: the head carries nothing that is
    public. The last checkpoint of a round does not count: it may still be published by itself, and whoever has run the round waits for it.
    """
    return (
        manifest.checkpoint < head.checkpoint
        and manifest.is_published_by_round(sink)
        and not manifest.ends_round
        and head.is_published_by_round(sink)
        and manifest.checkpoint > (head.sinks[sink].known_published or 0)
    )


def _tells_alone(manifest: Manifest, head: Manifest, remembered: Mapping[StageName, BatchId]) -> bool:
    """Returns whether it names files that count as those of a batch which a private log has not forgotten, and the head does not.

    Those that the head replaces it need not name: they never become public.
    """
    return any(
        each.batch >= remembered.get(cut.stage, BatchId(0)) and not covers(names_of(head, sink), each)
        for sink, cut in manifest.sinks.items()
        if not _is_carried(manifest, sink, head)
        for each in names_of(manifest, sink)
    )


def _sweep(home: Files) -> list[str]:
    """Deletes what settled tries have written and no manifest names."""
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
    """Returns the files of a home that a manifest names."""
    for cut in manifest.sinks.values():
        yield cut.actions.path
        yield from (each.actions.path for each in (*cut.carried, *cut.named_before))
    for brought in manifest.brought.values():
        yield from (each.actions.path for each in brought)
    for stage in manifest.stages.values():
        yield from (file.stored for file in stage.files)
        yield stage.channel.path


def _sweep_files(home: Files, head: CheckpointId, corrupt: Container[CheckpointId], named: Container[str]) -> list[str]:
    """Deletes files of actions and of channels."""
    deleted = []
    for name in home.names(CHECKPOINTS):
        number, path = checkpoint_of(name), f"{CHECKPOINTS}/{name}"
        if number is not None and number <= head and number not in corrupt and path not in named:
            with step(Step.DISCARD):
                home.delete(path)
            deleted.append(path)
    return deleted


def _settled(home: Files, head: CheckpointId, corrupt: Container[CheckpointId]) -> Iterator[str]:
    for stage in map(StageName, home.names(STATE)):
        for name in home.names(f"{STATE}/{stage}"):
            tried = state_try(name)
            if tried and tried.checkpoint <= head and tried.checkpoint not in corrupt:
                yield state_path(stage, *tried)
