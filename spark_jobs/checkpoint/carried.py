"""Finds what a checkpoint carries of those before it: the files of a sink that only the end of its round makes public.

The manifest of the newest checkpoint names all of them, so the manifests before it can be discarded. The files of actions stay where they
were written; they go when no manifest names them any more.
"""

from collections.abc import Sequence

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import CarriedActions, Manifest, Publish, SinkCut
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.protocol.table_shape import distinct

CARRIED_MAX = 64
"""A sink cut names at most so many files of actions of earlier checkpoints. The oldest are merged into one."""


def carried(
    store: CheckpointStore, number: CheckpointId, parent: Manifest | None, sink: SinkName, known: CheckpointId | None
) -> Sequence[CarriedActions]:
    """Returns what the checkpoints before one have added to a sink and is not public, oldest first.

    Args:
        store: The home's checkpoints. A merged file is written there, durably.
        number: The number that the checkpoint will have.
        parent: The checkpoint that it continues.
        sink: The sink.
        known: The checkpoint that the sink's table has reached.

    Raises:
        CorruptDocumentError: A manifest or a file of actions cannot be used.
        NotFoundError: One is gone.
    """
    if parent is None or sink not in parent.sinks:
        return parent.brought.get(sink, ()) if parent else ()
    before = parent.sinks[sink]
    if before.publish is Publish.FINAL:
        found = [
            each.model_copy(update={"staged_for": before.staged_for}) for each in (*before.carried, _as_carried(parent, before))
        ]
    else:  # the manifests of its unpublished checkpoints are kept, and carry nothing
        found = [_as_carried(each, each.sinks[sink]) for each in store.chain(parent.checkpoint, known) if sink in each.sinks]
    found = [each for each in found if each.last > (known or 0) and (each.actions.files or each.replace)]
    if len(found) <= CARRIED_MAX:
        return found
    *older, newest = found
    lines = [line for each in older for line in store.read_actions(each)]
    merged = {
        "last": older[-1].last,
        "batch": older[-1].batch,
        "actions": store.write_actions(number, sink, lines),
        "staged_for": distinct(shape for each in older for shape in each.staged_for),
    }
    return [older[0].model_copy(update=merged), newest]


def _as_carried(manifest: Manifest, cut: SinkCut) -> CarriedActions:
    return CarriedActions(
        first=manifest.checkpoint,
        last=manifest.checkpoint,
        batch=manifest.stages[cut.stage].batch,
        actions=cut.actions,
        replace=cut.replace,
        staged_for=cut.staged_for,
    )
