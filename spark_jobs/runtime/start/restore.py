"""Builds a new work directory from a checkpoint, for an attempt that cannot continue the old one.

The home decides. A file of another work directory is used only if it has the size and the hash in the manifest. A missing, partial, torn or
foreign local copy changes the duration of a restore, never its result.

If a file of a stage's state is damaged in the home, and no local copy is correct, the stage gets the state of an older checkpoint. Its
private log is still that of the newest one, with all batches since. They are replayed for the state alone
(:mod:`spark_jobs.runtime.stages.replay`).

Invariants:

1. A work directory is complete if its last document says so, and used only then. That document is written when all others are durable.
2. An incomplete work directory is emptied and built again, but only if this module has begun it.
3. Nothing in the home or in another work directory is changed.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

from spark_jobs.background import run_all
from spark_jobs.checkpoint.bundles import in_reading_order
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError, NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, StageName
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import rebuild_log
from spark_jobs.runtime.state.early_directory import MARK, mark_early
from spark_jobs.runtime.state.pinning import StateCopies
from spark_jobs.storage.files import Files, by_directory

_LOG = logging.getLogger(__name__)
_BEGUN = "restoring.json"
_WHOLE = "restored.json"
_AT_ONCE = min(16, 4 * (os.cpu_count() or 1))
"""Number of files that are copied at the same time. Each is hashed, and the plan of the start needs the processors, too."""
_LARGE_BYTES = 1 << 20
"""Size of a file that is made durable alone. Smaller files are made durable together, with one sync of their directories."""


@dataclass(frozen=True)
class Restored:
    """The number and the size of one stage's files, by their origin."""

    local_files: int
    local_bytes: int
    home_files: int
    home_bytes: int


NOTHING_COPIED: Mapping[StageName, Restored] = {}
"""No state is in a work directory yet."""


def is_whole(work: Files, manifest: Manifest) -> bool:
    """Returns True if a work directory was completely built from a checkpoint, even if it has changed since.

    Raises:
        RejectedError: The directory was built from another checkpoint.
    """
    source = _source(manifest)
    for name in (_BEGUN, _WHOLE):
        found = _read(work, name)
        if found not in (None, source):
            raise RejectedError(
                f"{work.url} was built from another checkpoint than {manifest.checkpoint}.",
                remedy="Report this: every attempt that restores begins its own work directory.",
                path=f"{work.url}/{name}",
                checkpoint=manifest.checkpoint,
            )
    return _read(work, _WHOLE) is not None


def is_half_built(work: Files) -> bool:
    """Returns True if a restore into a work directory has begun and not ended. Such a directory cannot be continued."""
    names = work.names("")
    return not {_BEGUN, MARK}.isdisjoint(names) and _WHOLE not in names


def restore(
    home: Files,
    manifest: Manifest,
    work: Files,
    local: Sequence[Files] = (),
    rescale: Callable[[StageName, StageCut], None] | None = None,
    *,
    second_copy: bool = False,
    copied: Mapping[StageName, Restored] = NOTHING_COPIED,
) -> dict[StageName, Restored]:
    """Builds a work directory from a checkpoint, complete and durable on return. Idempotent: a complete one is left alone.

    Args:
        home: The home with the manifest's files.
        manifest: The checkpoint.
        work: New work directory, which no other process writes.
        local: Other work directories of the home that may have the same files, the best first.
        rescale: Changes the number of state partitions of a restored stage.
        second_copy: True if the directory must share no file with the home.
        copied: The result of :func:`copy_state` for the same directory. Those stages are not copied again.

    Returns:
        The origin of the files by stage; empty if the directory was complete.

    Raises:
        RejectedError: The directory is in use, or belongs to another checkpoint; or the state cannot be rescaled.
        CorruptDocumentError: A file in the home is missing or differs from the manifest. There is no local copy of it, and no
            older checkpoint from which the state could be computed again.
        StorageError: The home or the work directory does not answer, or is full. Can be repeated.
    """
    if is_whole(work, manifest):
        return {}
    chain = _CheckpointChain(home, manifest)
    if not copied:
        _begin(work, manifest)
    found, oldest = dict(copied), 0
    for name in manifest.stages:
        depth = 0
        if name not in copied:
            depth, found[name] = chain.restore_state(name, _copies(home, work, name, second_copy), local)
        oldest = max(oldest, depth)
        _LOG.info(
            "stage %s is restored from checkpoint %d: %d files (%d bytes) from a local copy, %d files (%d bytes) from the home",
            name, chain.back(depth).checkpoint, found[name].local_files, found[name].local_bytes, found[name].home_files,
            found[name].home_bytes,
        )  # fmt: skip
    for name, cut in manifest.stages.items():
        chain.rebuild_log(work, name, oldest)
        if rescale:
            rescale(name, cut)
    with step(Step.RESTORE_END):
        work.create(_WHOLE, _source(manifest))
    return found


def copy_state(
    home: Files,
    manifest: Manifest,
    work: Files,
    attempt: AttemptNumber,
    local: Sequence[Files],
    check: Callable[[], object],
    *,
    second_copy: bool = False,
) -> dict[StageName, Restored]:
    """Does the long part of :func:`restore` ahead: begins a work directory, and copies the state of all stages into it. Durable on return.

    It uses no older checkpoint. If it fails, :func:`restore` begins again.

    Args:
        home: The home with the manifest's files.
        manifest: The checkpoint.
        work: New work directory, which no other process writes.
        attempt: The attempt that will use it. Its first file says so: an earlier attempt leaves it alone.
        local: Other work directories of the home that may have the same files, the best first.
        check: Called before each file, in several threads. Its exceptions are raised.
        second_copy: True if the directory must share no file with the home.

    Returns:
        The origin of the files by stage.

    Raises:
        RejectedError: The directory is in use.
        CorruptDocumentError: A file in the home is missing or differs from the manifest, and there is no local copy of it.
        StorageError: The home or the work directory does not answer, or is full. Can be repeated.
    """
    mark_early(work, attempt)
    _begin(work, manifest)
    return {
        name: _place_all(_copies(home, work, name, second_copy), local, cut.files, check) for name, cut in manifest.stages.items()
    }


def _copies(home: Files, work: Files, name: StageName, second_copy: bool) -> StateCopies:
    return StateCopies(home, SparkLog(work, checkpoint_directory(name)), second_copy)


class _CheckpointChain:
    """A checkpoint and its kept predecessors without a gap. The state can be computed again from each of them."""

    def __init__(self, home: Files, manifest: Manifest) -> None:
        self._home, self._store, self._newest = home, CheckpointStore(home), manifest

    @cached_property
    def _older(self) -> list[Manifest]:
        """The manifests before the newest one, newest first. They are read when a damaged file needs them."""
        found: list[Manifest] = []
        with suppress(NotFoundError, CorruptDocumentError):  # older ones are not kept, or cannot be used
            found.extend(islice(self._store.ancestry(self._newest), 1, None))
        return found

    def back(self, depth: int) -> Manifest:
        """Returns the manifest that is ``depth`` checkpoints before the newest one."""
        return self._older[depth - 1] if depth else self._newest

    def _from_newest(self) -> Iterator[Manifest]:
        yield self._newest
        yield from self._older

    def restore_state(self, name: StageName, copies: StateCopies, local: Sequence[Files]) -> tuple[int, Restored]:
        """Copies the state of a stage into a work directory, from the newest checkpoint with intact files.

        Returns:
            The number of checkpoints that it goes back, and the origin of the files.

        Raises:
            CorruptDocumentError: There is no such checkpoint, or the later batches cannot be computed again.
        """
        why: list[StreamPipelineError] = []
        for depth, older in enumerate(self._from_newest()):
            if name not in older.stages:
                break
            try:
                if depth:
                    self._check_replay(name, depth)
                return depth, _place_all(copies, local, self._files(name, older))
            except (CorruptDocumentError, NotFoundError) as error:
                _LOG.warning("stage %s is not restored from checkpoint %d: %s", name, older.checkpoint, error.failed)
                why.append(error)
                copies.work.delete(copies.log.directory)
        raise self._lost(name, why) from why[0]

    def rebuild_log(self, work: Files, name: StageName, depth: int) -> None:
        """Builds the private log of a stage from the newest checkpoint.

        Args:
            work: The work directory.
            name: The stage.
            depth: Number of checkpoints that a stage goes back. The log begins where the consumers of that one continue.

        Raises:
            CorruptDocumentError: A file with the batches was altered.
            NotFoundError: A file with the batches is missing.
        """
        lines, channels = self._lines(name, depth), self._channels(name, depth)
        rebuild_log(work, name, channels[0], [lines[batch] for batch in sorted(lines)], channels[-1].first)

    def _channels(self, name: StageName, depth: int) -> list[ChannelCut]:
        manifests = map(self.back, range(depth + 1))
        return [older.stages[name].channel for older in manifests if name in older.stages]

    def _lines(self, name: StageName, depth: int) -> dict[int, dict[str, Any]]:
        """Returns the lines of a stage's private log by batch, from the newest checkpoint and ``depth`` earlier ones."""
        channels = reversed(self._channels(name, depth))
        return {line["batch"]: line for cut in channels for line in self._store.read_channel(cut)}

    def _files(self, name: StageName, older: Manifest) -> list[StateFile]:
        """Returns the files of an older checkpoint, with the newest file logs of sources, because the offsets refer to these."""
        files = {file.path: file for file in self._newest.stages[name].files if file.path.startswith("sources/")}
        return list((files | {file.path: file for file in older.stages[name].files}).values())

    def _check_replay(self, name: StageName, depth: int) -> None:
        """Refuses to compute batches again that could give other rows.

        Raises:
            CorruptDocumentError: The plan of a batch is unknown, or the batches have read several versions of a static input.
        """
        newest, older = self._newest, self.back(depth)
        planned = {batch: line["offsets"] for batch, line in self._lines(name, depth).items()}
        since = range(older.stages[name].batch + 1, newest.stages[name].batch + 1)
        unknown = next((batch for batch in since if not planned.get(batch)), None)
        if unknown is not None:  # such as a batch that changed the number of state partitions
            raise self._not_replayable(older, f"the plan of batch {unknown} of stage '{name}' is not known")
        attempts = range(older.attempt + older.ends_attempt, newest.attempt + 1)
        statics = newest.graph["statics"].keys() & newest.graph["stages"][name]["inputs"].values()
        if statics and older.attempt < min(Attempts(self._home).numbers(), default=older.attempt):
            raise self._not_replayable(older, f"the versions of {', '.join(sorted(statics))} that were read are not known")
        for static in statics:
            pinned = (pins_of_attempt(self._home, AttemptNumber(number)).pinned(static) for number in attempts)
            if len({pin.pins for pin in pinned if pin is not None}) > 1:
                raise self._not_replayable(older, f"static input '{static}' was read at several versions")

    def _not_replayable(self, older: Manifest, why: str) -> CorruptDocumentError:
        return CorruptDocumentError(
            f"The batches after checkpoint {older.checkpoint} cannot be computed again: {why}.",
            safe="Nothing was changed.",
            remedy="Restore the damaged file of the newest checkpoint from a copy.",
            path=self._home.url,
        )

    def _lost(self, name: StageName, why: Sequence[StreamPipelineError]) -> CorruptDocumentError:
        kept = [older.checkpoint for older in self._older]
        exists = "No older checkpoint is kept."
        if kept:
            exists = f"The kept older checkpoints {', '.join(map(str, kept))} do not help: {why[-1].failed}"
        return CorruptDocumentError(
            why[0].failed,
            exists=f"{exists} Public rows stay.",
            safe="Nothing in the home was changed. The new work directory is not used.",
            remedy=f"Restore the file from a backup of the home. Or begin with a savepoint (--restore), or {BEGIN_ANEW}.",
            stage=name,
            kept=kept,
            **why[0].evidence,
        )


def _begin(work: Files, manifest: Manifest) -> None:
    names = [name for name in work.names("") if name != MARK]
    if _BEGUN not in names and names:
        raise RejectedError(
            f"{work.url} is not empty, but no restore has begun in it.",
            remedy="Report this: every attempt that restores begins its own work directory.",
            path=work.url,
        )
    with step(Step.RESTORE_BEGIN):
        work.create(_BEGUN, _source(manifest))
        for name in names:
            if name != _BEGUN:
                work.delete(name)


def _source(manifest: Manifest) -> bytes:
    return canonical({"checkpoint": manifest.checkpoint, "incarnation": manifest.incarnation, "nonce": manifest.nonce}) + b"\n"


def _read(work: Files, name: str) -> bytes | None:
    try:
        return work.read(name)
    except NotFoundError:
        return None


def _place_all(
    copies: StateCopies, local: Sequence[Files], found: Sequence[StateFile], check: Callable[[], object] = lambda: None
) -> Restored:
    files = in_reading_order(found)

    def place(file: StateFile) -> bool:
        check()
        is_local = copies.place(file, local)
        if file.size_bytes >= _LARGE_BYTES:  # the disk writes it while other files are copied
            copies.work.sync(copies.at(file.path))
        return is_local

    is_local = dict(zip(files, run_all([partial(place, file) for file in files], _AT_ONCE), strict=True))
    small = (copies.at(file.path) for file in files if file.size_bytes < _LARGE_BYTES)
    run_all([partial(copies.work.sync, *paths) for paths in by_directory(small)])
    return Restored(
        local_files=sum(is_local.values()),
        local_bytes=sum(file.size_bytes for file, here in is_local.items() if here),
        home_files=len(is_local) - sum(is_local.values()),
        home_bytes=sum(file.size_bytes for file, here in is_local.items() if not here),
    )
