"""A new work directory from a checkpoint: the way back where the old one cannot be continued.

The home is the truth. A file of another work directory is taken instead only if it has the size and the hash that the manifest names; a
missing, partial, torn or foreign local copy changes the time that this takes, never what comes of it.

Invariants:

1. A work directory is whole if its last document says so, and only then used. It is written when everything before it is durable.
2. One that is not whole is emptied and built again, and only if it was this module that began it.
3. Nothing that is in the home, or in another work directory, is changed.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, RejectedError, StorageError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import rebuild_log
from spark_jobs.storage.files import Files, by_directory, local_path, take

_LOG = logging.getLogger(__name__)
_BEGUN = "restoring.json"
_WHOLE = "restored.json"
_AT_ONCE = 16
_OPERATOR_FACTS = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA_FILE = re.compile(r"/state/\d+/_stateSchema/[^/]+/[^/]+$")


@dataclass(frozen=True)
class Restored:
    """Where the files of one stage have come from."""

    local_files: int
    local_bytes: int
    home_files: int
    home_bytes: int


def is_whole(work: Files, manifest: Manifest) -> bool:
    """Whether a work directory was built from a checkpoint to its end. What has been done in it since does not matter.

    Raises:
        RejectedError: It was built from another checkpoint.
    """
    source = _source(manifest)
    for name in (_BEGUN, _WHOLE):
        found = _read(work, name)
        if found not in (None, source):
            raise RejectedError(
                f"{work.url} was built from another checkpoint than {manifest.checkpoint}.",
                safe="Nothing was changed.",
                remedy="Report this: every attempt that restores begins a work directory of its own.",
                path=f"{work.url}/{name}",
                checkpoint=manifest.checkpoint,
            )
    return _read(work, _WHOLE) is not None


def is_half_built(work: Files) -> bool:
    """Whether a restore of a work directory has begun and not come to its end: nothing may be continued there."""
    return _read(work, _BEGUN) is not None and _read(work, _WHOLE) is None


def restore(
    home: Files,
    manifest: Manifest,
    work: Files,
    local: Sequence[Files] = (),
    rescale: Callable[[StageName, StageCut], None] | None = None,
) -> dict[StageName, Restored]:
    """Builds a work directory from a checkpoint; whole and durable on return. Idempotent: one that is whole is left as it is.

    Args:
        home: The home, with what the manifest names.
        manifest: The checkpoint.
        work: The new work directory, which nobody else writes.
        local: Other work directories of this host that may have the same files, the best first.
        rescale: Brings the state of a stage, once it is restored, into another number of partitions.

    Returns:
        By stage where its files have come from; empty where the directory was whole.

    Raises:
        RejectedError: The checkpoint cannot be restored, or the directory is in use, or belongs to another checkpoint.
        CorruptDocumentError: A file in the home is not the one that the manifest names, or is gone, and there is no local copy of it.
        StorageError: The home or the work directory does not answer, or is full. May be repeated.
    """
    if is_whole(work, manifest):
        return {}
    channels = {name: _channel(manifest, name, cut) for name, cut in manifest.stages.items()}
    _begin(work, manifest)
    store, found = CheckpointStore(home), {}
    for name, cut in manifest.stages.items():
        found[name] = _restore_state(home, work, local, checkpoint_directory(name), cut)
        rebuild_log(work, name, channels[name], store.read_channel(channels[name]))
        if rescale:
            rescale(name, cut)
        _LOG.info(
            "stage %s is restored from checkpoint %d: %d files (%d bytes) from a local copy, %d files (%d bytes) from the home",
            name, manifest.checkpoint, found[name].local_files, found[name].local_bytes, found[name].home_files,
            found[name].home_bytes,
        )  # fmt: skip
    with step(Step.RESTORE_END):
        work.create(_WHOLE, _source(manifest))
    return found


def _begin(work: Files, manifest: Manifest) -> None:
    names = work.names("")
    if _BEGUN not in names and names:
        raise RejectedError(
            f"{work.url} is not empty, and nothing says that it was being restored.",
            safe="Nothing was changed.",
            remedy="Report this: every attempt that restores begins a work directory of its own.",
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


def _channel(manifest: Manifest, name: StageName, cut: StageCut) -> ChannelCut:
    if cut.channel is None:
        raise RejectedError(
            f"Checkpoint {manifest.checkpoint} does not hold the state of stage '{name}'.",
            exists="It was made to be continued in its work directory.",
            safe="Nothing was changed.",
            remedy="Start where that work directory is, or begin anew with --fresh.",
            checkpoint=manifest.checkpoint,
            stage=name,
            work_directory=manifest.work_directory,
        )
    return cut.channel


def _restore_state(home: Files, work: Files, local: Sequence[Files], directory: str, cut: StageCut) -> Restored:
    def place(file: StateFile) -> bool:
        target = f"{directory}/{file.path}"
        if any(_take_local(work, other, target, file) for other in local):
            return True
        take_from_home(work, home, target, file)
        return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        is_local = dict(zip(cut.files, pool.map(place, cut.files), strict=True))
        for file in cut.files:
            if names_its_place(file.path):
                target = f"{directory}/{file.path}"
                work.replace(target, repointed(work.read(target), work, directory))
        for synced in [
            pool.submit(work.sync, *paths) for paths in by_directory(f"{directory}/{file.path}" for file in cut.files)
        ]:
            synced.result()
    return Restored(
        local_files=sum(is_local.values()),
        local_bytes=sum(file.size_bytes for file, here in is_local.items() if here),
        home_files=len(is_local) - sum(is_local.values()),
        home_bytes=sum(file.size_bytes for file, here in is_local.items() if not here),
    )


def _take_local(work: Files, other: Files, path: str, file: StateFile) -> bool:
    """Whether another work directory has had the file; whatever is wrong there is no more than that it has not."""
    source = local_path(other, path)
    try:
        if source.is_symlink() or source.stat().st_size != file.size_bytes:
            return False
        work.adopt(source, path)
        if work.digest(path) == (file.size_bytes, file.sha256):
            return True
    except (OSError, StorageError):
        pass
    work.delete(path)
    return False


def take_from_home(work: Files, home: Files, path: str, file: StateFile) -> None:
    """Gives a work directory a file that a checkpoint names; not durable before :meth:`Files.sync`.

    Raises:
        CorruptDocumentError: The file in the home is gone or was altered.
    """
    try:
        take(home, file.stored, work, path)
        found = work.digest(path)
    except NotFoundError as error:
        raise _not_as_named(home, file, None) from error
    if found != (file.size_bytes, file.sha256):
        raise _not_as_named(home, file, found.sha256)


def _not_as_named(home: Files, file: StateFile, found: str | None) -> CorruptDocumentError:
    what = "is gone" if found is None else f"was altered: expected SHA-256 {file.sha256}, found {found}"
    return CorruptDocumentError(
        f"{home.url}/{file.stored} {what}; no local copy has {file.path} either.",
        exists="The work directory that was being built is not used.",
        safe="Nothing in the home was changed.",
        remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=f"{home.url}/{file.stored}",
        expected=file.sha256,
        found=found,
    )


def names_its_place(path: str) -> bool:
    """Returns whether a file of Spark's checkpoint has absolute paths in it: the facts of an operator have those of its schemas."""
    return _OPERATOR_FACTS.fullmatch(path) is not None


def repointed(data: bytes, work: Files, directory: str) -> bytes:
    """Returns the facts of an operator with the paths that they have in ``directory`` of a work directory.

    Raises:
        CorruptDocumentError: They do not say what Spark writes.
    """
    version, _, body = data.decode().partition("\n")
    here = f"file:{local_path(work, directory)}"
    facts: dict[str, Any] = json.loads(body)
    for store in facts.get("stateStoreInfo", []):
        for number, named in enumerate(store.get("stateSchemaFilePaths", [])):
            found = _SCHEMA_FILE.search(named)
            if found is None:
                raise CorruptDocumentError(
                    f"The facts of an operator in {work.url}/{directory} name {named}, which is no schema file of Spark's state.",
                    exists="The work directory is not used.",
                    safe="Nothing in the home was changed.",
                    remedy="Report this.",
                    path=f"{work.url}/{directory}",
                    found=named,
                )
            store["stateSchemaFilePaths"][number] = here + found[0]
    return f"{version}\n{json.dumps(facts, separators=(',', ':'))}".encode()
