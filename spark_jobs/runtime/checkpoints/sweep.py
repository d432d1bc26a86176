"""Deletes staged files that no log or checkpoint names.

Considers only files with the stage's own prefix, only after a manifest that this attempt has created, and only those of batches in that
manifest: later ones may be under way.
"""

import logging
from collections.abc import Container, Sequence
from functools import cached_property
from urllib.parse import unquote

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.carried import names_of
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import CHANNELS, TOMBSTONES, WORK, channels_path, tombstones_path, work_directories, work_path
from spark_jobs.home.places import has_others
from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import AttemptDocument, CarriedActions, Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, IncarnationId, StageName, file_prefix
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.state.early_directory import is_for_later
from spark_jobs.storage.checksums import forget_checksum
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


class NamedByCheckpoints:
    """The paths of a stage's files that checkpoints name which were cut at a batch or later.

    The files may be public, even those that no batch has staged: packed ones. What a checkpoint that is gone has named, the remaining
    checkpoints name.

    If a manifest or a file of actions is damaged or gone, every path counts as named. So no damage stops the deletion of anything else. The
    private log still forgets its batches, and what failed batches have left stays in the table's directory.

    The manifests and the files of actions are read at the first query.

    Args:
        store: The home's checkpoints.
        manifest: The newest checkpoint; its ancestors are asked as well.
        stage: The stage.
        since: The batch.
    """

    def __init__(self, store: CheckpointStore, manifest: Manifest, stage: Stage, since: BatchId) -> None:
        self._store, self._manifest, self._stage, self._since = store, manifest, stage, since

    def __contains__(self, path: object) -> bool:
        """Returns True if a checkpoint names a file, or may name it.

        Raises:
            StorageError: The storage fails.
        """
        return self.paths is None or path in self.paths

    @cached_property
    def paths(self) -> frozenset[str] | None:
        """The paths, relative to the directory that the stage's files are in; None if not all of them are known."""
        try:
            lines = [line for each in self._actions().values() for line in self._store.read_actions(each)]
        except (CorruptDocumentError, NotFoundError) as error:
            _LOG.warning(
                "stage %s: staged files that nothing names are not deleted while this is so: %s", self._stage.name, error
            )
            return None
        return frozenset(unquote(line["add"]["path"]) for line in lines)

    def _actions(self) -> dict[str, CarriedActions]:
        """Returns what the checkpoints have added, by path of the file."""
        stage, found = self._stage.name, dict[str, CarriedActions]()
        for each in self._store.incarnation(self._manifest) if self._stage.sink else ():
            if stage not in each.stages or each.stages[stage].batch < self._since:
                break
            for sink in (sink for sink, cut in each.sinks.items() if cut.stage == stage):  # none in one that was a savepoint
                found |= {one.actions.path: one for one in names_of(each, sink) if one.batch >= self._since}
        return found


def orphans(
    stage: StageRun,
    last: BatchId,
    named_elsewhere: Container[str],
    needed_from: BatchId | None = None,
    left_out: Container[str] = (),
) -> list[str]:
    """Returns the staged files of a stage that are named by nothing which may still be read: paths in the table's directory, sorted.

    Of batches that the private log has not forgotten, these are the files that neither the log nor a checkpoint names. What a forgotten
    batch has left in a public table may be public, and is not looked at. In a directory of the runtime's own nothing is public.

    Args:
        stage: The stage.
        last: The last batch of which nothing is written any more.
        named_elsewhere: Paths that checkpoints name, of batches that the log still has.
        needed_from: The first batch of which a checkpoint may name files that are not in the log any more. None if there is none.
        left_out: Names of files that losses have left out. They stay.
    """
    oldest = stage.log.oldest()
    needed = oldest if needed_from is None else min(oldest, needed_from)
    named = {unquote(add["path"]) for batch in stage.log.between(BatchId(oldest - 1), last) for add in batch.adds}
    found = []
    for path in stage.directory.paths():
        name = path.rpartition("/")[2]
        if not name.startswith(stage.file_prefix) or name in left_out:
            continue
        batch = _batch(name.removeprefix(stage.file_prefix))
        left = oldest <= batch <= last and path not in named and path not in named_elsewhere
        if left or (stage.outlet.is_own and NO_BATCH < batch < needed):
            found.append(path)
    return sorted(found)


def _batch(name: str) -> BatchId:
    """Returns the batch that has staged a file; -1 if the name has no batch."""
    number, _, _ = name.partition("-")
    return BatchId(int(number)) if number.isdecimal() else NO_BATCH


def sweep(
    stage: StageRun,
    last: BatchId,
    named_elsewhere: Container[str],
    needed_from: BatchId | None = None,
    left_out: Container[str] = (),
) -> list[str]:
    """Deletes the orphans of a stage and returns them. Idempotent. The arguments are those of :func:`orphans`."""
    deleted = orphans(stage, last, named_elsewhere, needed_from, left_out)
    if deleted:
        with step(Step.SWEEP):
            for path in deleted:
                forget_checksum(stage.directory, path)
                stage.directory.delete(path)
    return deleted


def sweep_abandoned(home: Files, live: AttemptDocument, needed: Container[IncarnationId] = ()) -> None:
    """Deletes data in the home that belongs only to earlier attempts, and that the live one does not continue. Idempotent.

    Work directories from which another one was built; and of incarnations that are closed what their tables do not have: what is left
    of their deleted keys was inherited. What their manifests name stays: it may be public. A directory stays if another thing is in it,
    and so does one between the runtime's own tables that is none of them.

    Args:
        home: The home.
        live: The live attempt, which deletes.
        needed: Incarnations of which a checkpoint is kept. Their data stays until a later attempt deletes it.

    Raises:
        FencedError: Another attempt is live. Nothing was deleted.
    """
    directories = set(work_directories(home.names(WORK))) - {live.work_directory.id}
    found = {IncarnationId(name) for directory in (CHANNELS, TOMBSTONES) for name in home.names(directory)}
    incarnations = {incarnation for incarnation in found if incarnation not in needed} - {live.incarnation}
    if directories or incarnations:
        Attempts(home).check_live(live.attempt)  # after the listings: what a higher attempt creates before it is claimed says so
    going = [path for path in map(work_path, sorted(directories)) if _is_of_the_past(home, path, live.attempt)]
    for incarnation in sorted(incarnations):
        for place in (channels_path(incarnation), tombstones_path(incarnation)):
            going += _own_tables(home, incarnation, place)
    if going:
        with step(Step.SWEEP):
            for path in going:
                home.delete(path)


def _is_of_the_past(home: Files, directory: str, live: AttemptNumber) -> bool:
    """Returns True if a work directory has files, and they are neither another thing's nor for a later attempt."""
    paths = home.paths(directory)
    return bool(paths) and not has_others(home, paths) and not is_for_later(home.below(directory), live)


def _own_tables(home: Files, incarnation: IncarnationId, place: str) -> list[str]:
    """Returns the directories of the tables that an incarnation has at a place: the place itself if nothing else is there."""
    paths = home.paths(place)
    if has_others(home, paths):
        return []
    tables: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.removeprefix(f"{place}/").partition("/")
        tables.setdefault(name, []).append(rest)
    own = [name for name, files in tables.items() if _is_own(incarnation, name, files)]
    if len(own) == len(tables):
        return [place] if own else []
    _LOG.warning("%s has what is no table of the runtime: that stays", f"{home.url}/{place}")
    return [f"{place}/{name}" for name in own]


def _is_own(incarnation: IncarnationId, name: str, files: Sequence[str]) -> bool:
    """Returns True if a directory is a table of the runtime, by its log, or what a start has brought for one that was not made any more."""
    prefix = file_prefix(incarnation, StageName(name))
    return any(file.startswith(f"{DELTA_LOG}/") for file in files) or all(
        file.rpartition("/")[2].startswith(prefix) for file in files
    )
