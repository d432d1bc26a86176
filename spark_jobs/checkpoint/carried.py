"""Finds the earlier files that a checkpoint names, so that the earlier manifests can be discarded.

A checkpoint *carries* the files of each sink whose rows become public by round. It also names the other files of earlier checkpoints while
a private log has their batches. These names distinguish public staged files from leftovers.

The files of actions stay in their place. They are deleted when no manifest names them any more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import CarriedActions, Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import BatchId, CheckpointId, SinkName
from spark_jobs.protocol.table_shape import distinct

CARRIED_MAX = 64
"""Maximum number of files of actions of one round that a sink cut carries, and of others that it names. The oldest are merged."""
_FIRST_BATCH = BatchId(0)


def carried(
    store: CheckpointStore, number: CheckpointId, parent: Manifest | None, sink: SinkName, known: CheckpointId | None
) -> Sequence[CarriedActions]:
    """Returns the unpublished files of earlier checkpoints for a sink, oldest first.

    Args:
        store: Checkpoints of the home. A merged file is written there durably.
        number: Number of the new checkpoint.
        parent: Checkpoint that it continues.
        sink: The sink.
        known: Checkpoint that the sink's table has reached.

    Raises:
        CorruptDocumentError: A manifest or a file of actions cannot be used.
        NotFoundError: A manifest or a file of actions is missing.
    """
    if parent is None or sink not in parent.sinks:
        return parent.brought.get(sink, ()) if parent else ()
    before = parent.sinks[sink]
    if parent.is_published_by_round(sink):
        found = [
            each.model_copy(update={"staged_for": before.staged_for}) for each in (*before.carried, _as_carried(parent, before))
        ]
    else:  # the manifests of its unpublished checkpoints are kept, so nothing is carried
        found = [_as_carried(each, each.sinks[sink]) for each in store.chain(parent.checkpoint, known) if sink in each.sinks]
    found = [each for each in found if each.last > (known or 0) and (each.actions.files or each.replace)]
    # The last checkpoint of an earlier round may be published by itself, so its files are not merged with those of others.
    earlier, current = ([each for each in found if (each.round == parent.round) == is_current] for is_current in (False, True))
    return [*earlier, *_merged(store, number, sink, current)]


def named_before(
    store: CheckpointStore,
    number: CheckpointId,
    parent: Manifest | None,
    sink: SinkName,
    oldest: BatchId,
    before: Sequence[CarriedActions],
    reached: CheckpointId | None = None,
) -> Sequence[CarriedActions]:
    """Returns the other files of earlier checkpoints, of batches that a private log still has, oldest first.

    The parent names all of them, even if an attempt has gone back to an older checkpoint and its log begins earlier than the parent's
    channel: no log deletes the beginning of the channel of a kept checkpoint.

    A damaged or missing file of actions is named like any other, and is not merged.

    Args:
        store: Checkpoints of the home. A merged file is written there durably.
        number: Number of the new checkpoint.
        parent: Checkpoint that it continues.
        sink: The sink.
        oldest: First batch in the private log of the sink's stage.
        before: Files that the checkpoint carries.
        reached: Last checkpoint that can be public, if the rows of later ones are replaced; otherwise None.
    """
    named = (each for each in (names_of(parent, sink) if parent else ()) if each.batch >= oldest and not covers(before, each))
    wanted = sorted((each for each in named if reached is None or each.last <= reached), key=lambda each: each.first)
    found = [each.model_copy(update={"staged_for": ()}) for each in wanted]
    return _merged(store, number, sink, found, oldest, passed_over=(CorruptDocumentError, NotFoundError))


def names_of(manifest: Manifest, sink: SinkName) -> list[CarriedActions]:
    """Returns all non-empty files of actions that a checkpoint names for a sink: the earlier ones and its own."""
    if sink not in manifest.sinks:
        return []
    cut = manifest.sinks[sink]
    return [each for each in (*cut.named_before, *cut.carried, _as_carried(manifest, cut)) if each.actions.files]


def covers(found: Iterable[CarriedActions], each: CarriedActions) -> bool:
    """Returns True if one of the files of actions contains the checkpoints of another."""
    return any(other.first <= each.first and each.last <= other.last for other in found)


def _merged(
    store: CheckpointStore,
    number: CheckpointId,
    sink: SinkName,
    found: Sequence[CarriedActions],
    oldest: BatchId = _FIRST_BATCH,
    passed_over: tuple[type[Exception], ...] = (),
) -> Sequence[CarriedActions]:
    """Returns the files of actions. If there are too many, the older ones are merged into one.

    The merged file leaves out staged files of batches before ``oldest``. A file whose reading raises ``passed_over`` is not merged.
    """
    if len(found) <= CARRIED_MAX:
        return found
    older, left, lines = list[CarriedActions](), list[CarriedActions](), list[dict[str, Any]]()
    for each in found[:-1]:
        try:
            lines += [line for line in store.read_actions(each) if line["batch"] >= oldest]
        except passed_over:
            left.append(each)
        else:
            older.append(each)
    if not older:
        return found
    merged = {
        "last": older[-1].last,
        "batch": older[-1].batch,
        "actions": store.write_actions(number, sink, lines),
        "staged_for": distinct(shape for each in older for shape in each.staged_for),
    }
    return [*left, older[0].model_copy(update=merged), found[-1]]


def _as_carried(manifest: Manifest, cut: SinkCut) -> CarriedActions:
    return CarriedActions(
        first=manifest.checkpoint,
        last=manifest.checkpoint,
        batch=manifest.stages[cut.stage].batch,
        round=manifest.round,
        actions=cut.actions,
        replace=cut.replace,
        staged_for=cut.staged_for,
    )
