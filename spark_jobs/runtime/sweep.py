"""Deleting staged files that nothing names (design, section 7, 'Deleting').

Only files that carry a stage's own prefix are looked at, only after a manifest that this attempt created itself, and only those of
batches that it holds: later ones may be under way.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from urllib.parse import unquote

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import newest_of
from spark_jobs.protocol.documents import AttemptDocument, Manifest
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageRun
from spark_jobs.runtime.tombstones import TOMBSTONES
from spark_jobs.storage.files import Files


def named_by_checkpoints(store: CheckpointStore, manifest: Manifest, stage: Stage, since: BatchId) -> set[str]:
    """The stage's files that a checkpoint names which was cut at batch ``since`` or later: ``manifest`` or an ancestor.

    They may be public, also where no batch has staged them: packed ones.

    Raises:
        CorruptDocumentError: A manifest or a file of actions of these cannot be read: nobody knows what may be deleted.
        NotFoundError: A file of actions is gone.
    """
    named: set[str] = set()
    for each in store.incarnation(manifest) if stage.sink else ():
        if stage.name not in each.stages or each.stages[stage.name].batch < since:
            break
        for cut in (cut for cut in each.sinks.values() if cut.stage == stage.name):  # none in one that was a savepoint
            named.update(unquote(line["add"]["path"]) for line in store.read_actions(cut))
    return named


def orphans(stage: StageRun, last: BatchId, named_elsewhere: Set[str]) -> list[Path]:
    """Staged files of a stage that neither its private log nor a checkpoint names, sorted; of batches that the log has not forgotten.

    What a forgotten batch has left over was deleted while the log still knew it; what it has named may be public, and is not looked at.

    Args:
        stage: The stage.
        last: The last batch of which nothing is written any more.
        named_elsewhere: What checkpoints name of the batches that the log has not forgotten.
    """
    oldest = stage.log.oldest()
    named = {unquote(add["path"]) for batch in stage.log.between(BatchId(oldest - 1), last) for add in batch.adds}
    found = (path for path in stage.table.path.rglob(f"{stage.file_prefix}*") if path.is_file())
    known = (path for path in found if oldest <= _batch(path.name.removeprefix(stage.file_prefix)) <= last)
    return sorted(path for path in known if str(path.relative_to(stage.table.path)) not in named | named_elsewhere)


def _batch(name: str) -> BatchId:
    """The batch that has staged a file; -1 where the name does not say."""
    number, _, _ = name.partition("-")
    return BatchId(int(number)) if number.isdecimal() else NO_BATCH


def sweep(
    stages: Iterable[StageRun], last: Mapping[StageName, BatchId], named_elsewhere: Mapping[StageName, Set[str]]
) -> list[Path]:
    """Deletes the orphans of all stages and returns them; idempotent. By stage the arguments of :func:`orphans`."""
    deleted = [path for stage in stages for path in orphans(stage, last[stage.stage.name], named_elsewhere[stage.stage.name])]
    if deleted:
        with step(Step.SWEEP):
            for path in deleted:
                path.unlink(missing_ok=True)
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return deleted


def sweep_abandoned(home: Files, attempts: Sequence[AttemptDocument]) -> None:
    """Deletes what earlier attempts have in the home for themselves alone, and the newest one does not continue; idempotent.

    Work directories from which another one was built; and of incarnations that are closed what their tables do not have: what is left
    of their deleted keys was inherited. What their manifests name stays: it may be public.
    """
    live = newest_of(attempts)
    directories = {attempt.work_directory.id for attempt in attempts} - {live.work_directory.id}
    incarnations = {attempt.incarnation for attempt in attempts} - {live.incarnation}
    paths = [f"work/{directory}" for directory in sorted(directories)]
    paths += [f"{kind}/{incarnation}" for incarnation in sorted(incarnations) for kind in ("channels", TOMBSTONES)]
    present = [path for path in paths if home.names(path)]
    if present:
        with step(Step.SWEEP):
            for path in present:
                home.delete(path)
