"""Deleting staged files that nothing names (design, section 7, 'Deleting').

Only files that carry a stage's own prefix are looked at, and only after a manifest that this attempt created itself: no batch of the
incarnation is under way then.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageRun
from spark_jobs.storage.files import Files


def orphans(stage: StageRun) -> list[Path]:
    """Staged files of a stage that its private log does not name, sorted; of batches that the log has not forgotten.

    What a forgotten batch has left over was deleted while the log still knew it; what it has named may be public, and is not looked at.
    """
    oldest, last = stage.log.oldest(), BatchId(stage.log.latest() - 1)
    named = {unquote(add["path"]) for batch in stage.log.between(BatchId(oldest - 1), last) for add in batch.adds}
    found = (path for path in stage.table.path.rglob(f"{stage.file_prefix}*") if path.is_file())
    known = (path for path in found if _batch(path.name.removeprefix(stage.file_prefix)) >= oldest)
    return sorted(path for path in known if str(path.relative_to(stage.table.path)) not in named)


def _batch(name: str) -> BatchId:
    """The batch that has staged a file; -1 where the name does not say."""
    number, _, _ = name.partition("-")
    return BatchId(int(number)) if number.isdecimal() else NO_BATCH


def sweep(stages: Iterable[StageRun]) -> list[Path]:
    """Deletes the orphans of all stages and returns them; idempotent."""
    deleted = [path for stage in stages for path in orphans(stage)]
    if deleted:
        with step(Step.SWEEP):
            for path in deleted:
                path.unlink(missing_ok=True)
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return deleted


def sweep_abandoned(home: Files, attempts: Sequence[AttemptDocument]) -> None:
    """Deletes work directories and channels of incarnations that the newest attempt does not continue; idempotent.

    What their manifests name stays: it may be public.
    """
    live = attempts[-1].incarnation
    abandoned = {attempt.incarnation: attempt.work_directory.id for attempt in attempts if attempt.incarnation != live}
    paths = [f"work/{directory}" for directory in abandoned.values()] + [f"channels/{incarnation}" for incarnation in abandoned]
    present = [path for path in paths if home.names(path)]
    if present:
        with step(Step.SWEEP):
            for path in present:
                home.delete(path)
