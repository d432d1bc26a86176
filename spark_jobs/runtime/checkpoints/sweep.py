"""Deletes staged files that nothing names (design, section 7, 'Deleting').

Only files that carry a stage's own prefix are looked at, only after a manifest that this attempt created itself, and only those of
batches that it holds: later ones may be under way. What a failed batch has left in a public table after the one look that an attempt takes
there is left to ``VACUUM``, as what any failed write to Delta leaves.
"""

from collections.abc import Container, Set
from pathlib import Path
from urllib.parse import unquote

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import CHANNELS, TOMBSTONES, WORK, channels_path, tombstones_path, work_directories, work_path
from spark_jobs.protocol.documents import AttemptDocument, CarriedActions, Manifest, SinkCut
from spark_jobs.protocol.ids import BatchId, IncarnationId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.checksums import checksum_name
from spark_jobs.storage.files import Files


def named_by_checkpoints(store: CheckpointStore, manifest: Manifest, stage: Stage, since: BatchId) -> set[str]:
    """Returns the stage's files that checkpoints name which were cut at batch ``since`` or later: ``manifest`` and its ancestors.

    They may be public, also where no batch has staged them: packed ones.

    Raises:
        CorruptDocumentError: A manifest or a file of actions of these cannot be read: nobody knows what may be deleted.
        NotFoundError: A file of actions is gone.
    """
    named: set[str] = set()
    read: set[str] = set()
    for each in store.incarnation(manifest) if stage.sink else ():
        if stage.name not in each.stages or each.stages[stage.name].batch < since:
            break
        for cut in (cut for cut in each.sinks.values() if cut.stage == stage.name):  # none in one that was a savepoint
            adding: list[SinkCut | CarriedActions] = [cut, *(carried for carried in cut.carried if carried.batch >= since)]
            for actions in (one for one in adding if one.actions.path not in read):
                read.add(actions.actions.path)
                named.update(unquote(line["add"]["path"]) for line in store.read_actions(actions))
    return named


def orphans(stage: StageRun, last: BatchId, named_elsewhere: Set[str], needed_from: BatchId | None = None) -> list[Path]:
    """Returns a stage's staged files that nothing names which may still be read, sorted.

    Of batches that the private log has not forgotten, those that neither it nor a checkpoint names. What a forgotten batch has left in a
    public table may be public, and is not looked at; in a directory of the runtime's own nothing is.

    Args:
        stage: The stage.
        last: The last batch of which nothing is written any more.
        named_elsewhere: What checkpoints name of the batches that the log has not forgotten.
        needed_from: The first batch of which a checkpoint may name files that the log has forgotten; None where none does.
    """
    oldest = stage.log.oldest()
    needed = oldest if needed_from is None else min(oldest, needed_from)
    named = {
        unquote(add["path"]) for batch in stage.log.between(BatchId(oldest - 1), last) for add in batch.adds
    } | named_elsewhere
    found = []
    for path in (path for path in stage.table.path.rglob(f"{stage.file_prefix}*") if path.is_file()):
        batch = _batch(path.name.removeprefix(stage.file_prefix))
        remembered = oldest <= batch <= last and str(path.relative_to(stage.table.path)) not in named
        if remembered or (stage.outlet.is_own and NO_BATCH < batch < needed):
            found.append(path)
    return sorted(found)


def _batch(name: str) -> BatchId:
    """Returns the batch that has staged a file; -1 where the name does not say."""
    number, _, _ = name.partition("-")
    return BatchId(int(number)) if number.isdecimal() else NO_BATCH


def sweep(stage: StageRun, last: BatchId, named_elsewhere: Set[str], needed_from: BatchId | None = None) -> list[Path]:
    """Deletes the orphans of a stage and returns them; idempotent. The arguments are those of :func:`orphans`."""
    deleted = orphans(stage, last, named_elsewhere, needed_from)
    if deleted:
        with step(Step.SWEEP):
            for path in deleted:
                path.unlink(missing_ok=True)
                path.with_name(checksum_name(path.name)).unlink(missing_ok=True)
    return deleted


def sweep_abandoned(home: Files, live: AttemptDocument, needed: Container[IncarnationId] = ()) -> None:
    """Deletes what earlier attempts have in the home for themselves alone, and the live one does not continue; idempotent.

    Work directories from which another one was built; and of incarnations that are closed what their tables do not have: what is left
    of their deleted keys was inherited. What their manifests name stays: it may be public.

    Args:
        home: The home.
        live: The attempt that deletes.
        needed: Incarnations of which a checkpoint is kept: what they have stays, for a later attempt to delete.

    Raises:
        FencedError: Another attempt is live. Nothing was deleted.
    """
    directories = set(work_directories(home.names(WORK))) - {live.work_directory.id}
    found = {IncarnationId(name) for directory in (CHANNELS, TOMBSTONES) for name in home.names(directory)}
    incarnations = {incarnation for incarnation in found if incarnation not in needed} - {live.incarnation}
    if directories or incarnations:
        Attempts(home).check_live(live.attempt)  # after the listings: a higher attempt makes nothing before it is claimed
    paths = [work_path(directory) for directory in sorted(directories)]
    paths += [place(incarnation) for incarnation in sorted(incarnations) for place in (channels_path, tombstones_path)]
    present = [path for path in paths if home.names(path)]
    if present:
        with step(Step.SWEEP):
            for path in present:
                home.delete(path)
