"""Which checkpoints may go, and what goes with them (design, section 7, 'Deleting').

Invariants:

1. A state file goes only if no manifest names it (model rule ``gcnames``), and only if the number of the try that has kept it is settled: a
   valid manifest has it, or a higher one. What a failed try has kept stays until then (model rule ``failkeep``), because its manifest may
   still come to exist.
2. A manifest goes before what it names: nobody finds one that names what is gone. What a crash leaves then is named by nothing, and goes
   the next time.
3. A corrupt manifest is never discarded, and what was kept by tries at its number stays.
4. A kept checkpoint is kept whole: whoever goes on from it, or publishes it, finds all that it names.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, InvalidParameterError
from spark_jobs.protocol.ids import BatchId, CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files

_STATE = "state"
_TRY = re.compile(r"(\d+)-\d+-\d+")


def kept(
    manifests: Sequence[Manifest],
    *,
    retained: int,
    published: Mapping[SinkName, CheckpointId | None],
    needed: Container[CheckpointId] = (),
) -> list[Manifest]:
    """The checkpoints that somebody may go on from, publish or copy, ascending; nothing that they name may go.

    These are, of the head's incarnation, the newest ones, and the head's parent, which takes its place should the head turn out corrupt;
    and what is not public in every sink. Of any incarnation what an open request names.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
        retained: How many of the head's incarnation stay, at least 1.
        published: By sink the newest checkpoint of the head's incarnation that is public.
        needed: What open requests name: it is not copied yet.

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
    stay |= {manifest.checkpoint for manifest in line if not _is_public(manifest, published)}
    return [manifest for manifest in manifests if manifest.checkpoint in stay or manifest.checkpoint in needed]


def discardable(
    manifests: Sequence[Manifest],
    kept: Iterable[Manifest],
    *,
    remembered: Mapping[StageName, BatchId],
    closed: Container[IncarnationId] = (),
) -> list[CheckpointId]:
    """The checkpoints that nobody needs any more, ascending.

    What stays beside those that are kept: final checkpoints, which are the answers of their rounds; what names files of batches that a
    private log has not forgotten, which nothing else may name; and what an earlier incarnation may still publish. What was taken for a
    savepoint or a stop goes like any other: the savepoint is a copy.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
        kept: Those of them that :func:`kept` has found.
        remembered: By stage the first batch that its private log has not forgotten.
        closed: Incarnations into whose tables nothing can be published any more.
    """
    stay = {manifest.checkpoint for manifest in kept}
    return [
        manifest.checkpoint
        for manifest in manifests
        if manifest.checkpoint not in stay
        and manifest.checkpoint_kind is not CheckpointKind.FINAL
        and (
            manifest.incarnation in closed
            or (manifest.incarnation == manifests[-1].incarnation and not _tells(manifest, remembered))
        )
    ]


def discard(home: Files, checkpoints: Iterable[CheckpointId]) -> list[str]:
    """Deletes checkpoints and the state files that they alone have named, durably; may be repeated.

    Args:
        home: The home.
        checkpoints: Those that :func:`discardable` has found; none, to finish what was left.

    Returns:
        The state files, and whole directories of them, that went.

    Raises:
        StorageError: Not everything was deleted; repeat.
        UnsupportedFormatError: A newer version has written a manifest: nobody knows what it names. No state file was deleted.
    """
    for checkpoint in checkpoints:
        with step(Step.DISCARD):
            home.delete(f"checkpoints/{checkpoint}/manifest.json")
            home.delete(f"checkpoints/{checkpoint}")
    return _sweep_state(home)


def in_flight_from(manifests: Iterable[Manifest], stage: StageName) -> BatchId | None:
    """The first batch of a stage whose staged files the channels of these checkpoints name; None where none does.

    A private log that forgets a batch deletes its files: never one from here on.
    """
    channels = (manifest.stages[stage].channel for manifest in manifests if stage in manifest.stages)
    return min((channel.first for channel in channels if channel is not None), default=None)


def unpublished_from(
    manifests: Sequence[Manifest], published: Mapping[SinkName, CheckpointId | None], stage: StageName
) -> BatchId | None:
    """The first batch of a stage whose rows a checkpoint of the head's incarnation has and not every sink; None where there is none.

    Args:
        manifests: All valid ones, ascending; the last one is the head.
        published: As for :func:`kept`.
        stage: The stage.
    """
    line = [manifest for manifest in manifests if manifest.incarnation == manifests[-1].incarnation]
    first = next((manifest for manifest in line if not _is_public(manifest, published)), None)
    if first is None:
        return None
    parent = next((manifest for manifest in line if manifest.checkpoint == first.parent), None)
    return BatchId(parent.stages[stage].batch + 1) if parent and stage in parent.stages else BatchId(0)


def _is_public(manifest: Manifest, published: Mapping[SinkName, CheckpointId | None]) -> bool:
    return all((published.get(sink) or 0) >= manifest.checkpoint for sink in manifest.sinks)


def _tells(manifest: Manifest, remembered: Mapping[StageName, BatchId]) -> bool:
    """Whether it names files that count as those of a batch which a private log has not forgotten."""
    cuts = (cut for cut in manifest.sinks.values() if cut.actions.files)
    return any(manifest.stages[cut.stage].batch >= remembered.get(cut.stage, BatchId(0)) for cut in cuts)


def _sweep_state(home: Files) -> list[str]:
    """Deletes what settled tries have kept and no manifest names."""
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
    named = {file.stored for manifest in manifests for cut in manifest.stages.values() for file in cut.files}
    in_use = {"/".join(path.split("/")[:3]) for path in named}
    deleted = []
    for place in _settled(home, manifests[-1].checkpoint, corrupt):
        for path in [place] if place not in in_use else [path for path in home.paths(place) if path not in named]:
            with step(Step.DISCARD):
                home.delete(path)
            deleted.append(path)
    return deleted


def _settled(home: Files, head: CheckpointId, corrupt: Container[CheckpointId]) -> Iterator[str]:
    for stage in home.names(_STATE):
        for name in home.names(f"{_STATE}/{stage}"):
            found = _TRY.fullmatch(name)
            if found and int(found[1]) <= head and int(found[1]) not in corrupt:
                yield f"{_STATE}/{stage}/{name}"
