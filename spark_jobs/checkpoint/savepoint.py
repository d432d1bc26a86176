"""Savepoints: copies of a checkpoint that belong to the user.

A savepoint is a directory with everything that a restore needs: the manifest, its state and channel files, and all staged files that were
not known to be public when the checkpoint was taken, with the manifests of their checkpoints. It refers to nothing outside, so it can be
moved. It shares no file with the home, so damage to one does not damage the other.

Invariants:

1. A savepoint exists if and only if ``savepoint.json`` does. It is written when all named files are durable, and deleted first.
2. A directory is used only if it is empty, or if this very savepoint was begun there. Several processes may write the same savepoint:
   none deletes a correct file, so when the first process finishes, the savepoint is complete for all. An incomplete savepoint is deleted
   only after its request was answered with an error: no later answer can say that it is complete.
3. The manifest decides which checkpoints' rows it has. Later publications do not matter.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from spark_jobs.background import run_all
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.named_files import NamedFile, NamedFiles, altered
from spark_jobs.checkpoint.savepoint_files import PARTS, needed_files
from spark_jobs.home.layout import BEGUN_SAVEPOINT, SAVEPOINT, manifest_path
from spark_jobs.home.places import Kind, Thing, check_deletable, check_savepoint, has_others, kinds_of, thing
from spark_jobs.home.source_places import source_places
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import ConflictError, CorruptDocumentError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, InputName, RequestId
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.savepoint import Savepoint, SavepointFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Digest, Files, create_document, end_copies, is_mounted, local_path, read_document
from spark_jobs.storage.table_uris import table_files

_LOG = logging.getLogger(__name__)
_BEGUN_MAX_BYTES = 1 << 20
_DISPOSE = "Name a new directory. If nobody writes this one any more, delete it: spark-jobs dispose."


def export(
    home: Files,
    checkpoint: CheckpointId,
    target: Files,
    *,
    request: RequestId | None,
    check: Callable[[], object] = lambda: None,
) -> Savepoint:
    """Copies a complete checkpoint into a savepoint. Durable on return.

    Idempotent: a repetition after a crash at any step, or after its end, gives the same directory.

    Args:
        home: The home.
        checkpoint: Number of the checkpoint. The earlier ones that it needs are found.
        target: The directory, which is created. It may be empty, or have the beginning of this very export.
        request: Request that the savepoint belongs to.
        check: Called before each file is copied, from several threads, and before the savepoint is completed. Its exception is raised
            here, and the copied files stay.

    Raises:
        RejectedError: There is no such checkpoint, or the directory has other files or belongs to another request. Nothing was
            written.
        CorruptDocumentError: A file of the checkpoint is missing or was altered. The error names its path. There is no savepoint.
        StorageError: The home or the target does not answer, or is full. May be repeated.
    """
    manifest = _manifest(home, checkpoint)
    standing = _standing(home, manifest, target, request)
    if standing is None:
        standing = _build(home, manifest, target, request, check)
    with step(Step.SAVEPOINT_END):
        target.delete(BEGUN_SAVEPOINT)
    return standing


def read_savepoint(savepoint: Files) -> tuple[Savepoint, Manifest]:
    """Reads a savepoint and the manifest of its checkpoint. :func:`verify` reads its files.

    Raises:
        RejectedError: The directory is not a savepoint.
        CorruptDocumentError: ``savepoint.json`` or the manifest is torn, altered, or another one's.
    """
    try:
        found = read_document(savepoint, SAVEPOINT, Savepoint)
    except NotFoundError as error:
        begun = BEGUN_SAVEPOINT in savepoint.names("")
        raise RejectedError(
            f"{savepoint.url} is not a savepoint: it has no {SAVEPOINT}.",
            exists="An export has begun there and is not finished." if begun else "",
            remedy="Repeat its request, or delete it with spark-jobs dispose." if begun else "Give the directory of a savepoint.",
            path=savepoint.url,
        ) from error
    try:
        manifest = CheckpointStore(savepoint).manifest(found.checkpoint)
    except NotFoundError as error:
        raise altered(savepoint.url, manifest_path(found.checkpoint), "a manifest", None) from error
    if (manifest.pipeline, manifest.incarnation) != (found.pipeline, found.incarnation):
        raise altered(savepoint.url, manifest_path(found.checkpoint), found.incarnation, manifest.incarnation)
    return found, manifest


def named_by_savepoint(savepoint: Files) -> NamedFiles:
    """Returns every file that a savepoint names; errors as in :func:`read_savepoint`."""
    found, _ = read_savepoint(savepoint)
    files = [NamedFile(savepoint, file.path, file.size_bytes, file.sha256) for file in found.files]
    return NamedFiles([found.checkpoint], files)


def verify(savepoint: Files, progress: Callable[[int], object] = lambda size_bytes: None) -> Savepoint:
    """Reads every file of a savepoint and compares its size and hash; writes nothing.

    Args:
        savepoint: Its directory.
        progress: Called with the size of each file once it was read, from several threads.

    Raises:
        RejectedError: The directory is not a savepoint.
        CorruptDocumentError: A file is missing or was altered. The error names the first one.
    """
    found, _ = read_savepoint(savepoint)
    if damage := named_by_savepoint(savepoint).verify(progress):
        raise damage[0]
    return found


def dispose(savepoint: Files, needed_by: Iterable[str] = ()) -> None:
    """Deletes a savepoint durably, also an incomplete one. Idempotent.

    Args:
        savepoint: Its directory. Foreign files in it stay.
        needed_by: Descriptions of its users. With users it stays.

    Raises:
        RejectedError: The directory is not a savepoint, has another thing, too, or has users. Nothing was deleted.
        CorruptDocumentError: ``savepoint.json`` is torn, so its files are unknown. Nothing was deleted.
        StorageError: Not everything was deleted. Repeat.
    """
    if savepoint.names(""):
        _dispose(savepoint, list(needed_by))
    _remove_directory(savepoint)


def begun_with(home: Files, target: Files, request: RequestId) -> Manifest | None:
    """Returns the checkpoint of a request's complete or begun savepoint, or None, also if the home does not have it any more.

    A later answer to the request uses this checkpoint, not the newest one, because its directory is taken.

    Raises:
        CorruptDocumentError: A document is torn or altered.
        StorageError: The directory or the home cannot be read.
    """
    names = target.names("")
    if SAVEPOINT in names:
        savepoint = read_document(target, SAVEPOINT, Savepoint)
        found: Mapping[str, Any] | None = _whose(savepoint, savepoint.request)
    else:
        found = _begun(target) if BEGUN_SAVEPOINT in names else None
    if not found or found.get("request") != request:
        return None
    manifest = CheckpointStore(home).kept(found["checkpoint"])
    return manifest if manifest is not None and _whose(manifest, request) == found else None


def begun_by(target: Files) -> RequestId | None:
    """Returns the request of an unfinished export in a directory, or None if there is none or it is unknown.

    Raises:
        StorageError: The directory cannot be read.
    """
    names = target.names("")
    found = _begun(target) if BEGUN_SAVEPOINT in names and SAVEPOINT not in names else None
    return None if not found or not found.get("request") else RequestId(found["request"])


def abandon(manifest: Manifest, target: Files, *, request: RequestId) -> None:
    """Deletes an unfinished export after its request was answered with an error. Idempotent, durable on return.

    A complete savepoint stays, and so do foreign files.

    Args:
        manifest: The checkpoint that was exported.
        target: The directory.
        request: Request of the savepoint.

    Raises:
        StorageError: Not everything was deleted. Repeat.
    """
    names = target.names("")
    alone = kinds_of(names) == {Kind.SAVEPOINT} and SAVEPOINT not in names
    if not alone or target.read(BEGUN_SAVEPOINT) != _identity(manifest, request):
        return
    if not has_others(target, chain.from_iterable(target.paths(part) for part in PARTS if part in names)):
        _remove(target, names)
        _remove_directory(target)


def _dispose(savepoint: Files, needed_by: list[str]) -> None:
    names = savepoint.names("")
    if not {SAVEPOINT, BEGUN_SAVEPOINT} & set(names):
        read_savepoint(savepoint)
    check_deletable(Kind.SAVEPOINT, savepoint, names, PARTS)
    if needed_by:
        raise RejectedError(
            f"The savepoint {savepoint.url} is needed by {', '.join(needed_by)}.",
            safe="Nothing was deleted.",
            remedy="Wait until they no longer need it: spark-jobs status shows them.",
            path=savepoint.url,
            needed_by=needed_by,
        )
    if SAVEPOINT in names:
        found = read_document(savepoint, SAVEPOINT, Savepoint)
        with step(Step.SAVEPOINT_VOID):  # it becomes an incomplete one, so that a repetition finds it
            savepoint.create(BEGUN_SAVEPOINT, _identity(found, found.request))
            savepoint.delete(SAVEPOINT)
    names = savepoint.names("")
    check_deletable(
        Kind.SAVEPOINT, savepoint, names, PARTS
    )  # another process may have deleted it, and a home may have begun there
    _remove(savepoint, names)


def _remove(savepoint: Files, names: Iterable[str]) -> None:
    with step(Step.SAVEPOINT_REMOVE):
        for name in set(PARTS) & set(names):
            savepoint.delete(name)
        savepoint.delete(BEGUN_SAVEPOINT)


def _remove_directory(savepoint: Files) -> None:
    if is_mounted(savepoint):  # an object store has no directories
        with suppress(OSError):  # the rest is foreign
            local_path(savepoint).rmdir()


def check_target(home: Files, target: Files, others: Collection[Thing], request: RequestId) -> None:
    """Refuses a directory that cannot hold a savepoint of a future checkpoint. Writes nothing.

    Args:
        home: The home.
        target: The directory.
        others: The pipeline's tables and sources: see :func:`places_of`.
        request: The request. Its own beginning there can be finished.

    Raises:
        RejectedError: The directory is or has another thing, is inside one, or has the beginning of another request's savepoint.
        StorageError: The directory cannot be read.
    """
    names = target.names("")
    check_savepoint(home, target, names, others)
    if SAVEPOINT in names:
        found = read_document(target, SAVEPOINT, Savepoint)
        if found.request != request:
            raise _refused(target, f"it has checkpoint {found.checkpoint} of pipeline {found.pipeline_name} for {found.request}")
    elif BEGUN_SAVEPOINT in names:
        begun = _begun(target)
        if begun is None:  # another try has finished
            check_target(home, target, others, request)
        elif begun.get("request") != request:
            raise _refused(target, f"a savepoint was begun there for {begun.get('request') or 'somebody else'}", _DISPOSE)
    elif names:
        raise _refused(target, f"it is not empty: it has {names[0]}")


def _begun(target: Files) -> Mapping[str, Any] | None:
    """Returns the content of ``exporting.json`` in a directory: None if it is missing, empty if it is unreadable."""
    try:
        found = json.loads(target.read(BEGUN_SAVEPOINT, _BEGUN_MAX_BYTES))
    except NotFoundError:
        return None
    except (ValueError, RecursionError, CorruptDocumentError):
        return {}
    return found if isinstance(found, dict) else {}


def places_of(tables: Iterable[str], sources: Mapping[InputName, Collection[KnownSource]]) -> list[Thing]:
    """Returns the things of a pipeline that no savepoint may overlap.

    Args:
        tables: URLs of the sinks' tables.
        sources: The pipeline's sources.
    """
    return [*(thing(Kind.TABLE, table_files(table)) for table in tables), *source_places(sources)]


def _manifest(home: Files, checkpoint: CheckpointId) -> Manifest:
    try:
        return CheckpointStore(home).manifest(checkpoint)
    except NotFoundError as error:
        raise RejectedError(
            f"There is no complete checkpoint {checkpoint} in {home.url}.",
            remedy="Choose a checkpoint from the list of spark-jobs checkpoints.",
            checkpoint=checkpoint,
        ) from error


def _standing(home: Files, manifest: Manifest, target: Files, request: RequestId | None) -> Savepoint | None:
    """Returns the savepoint if it already exists, or None if it can still be made."""
    names = target.names("")
    check_savepoint(home, target, names, places_of((cut.table for cut in manifest.sinks.values()), manifest.sources))
    if SAVEPOINT in names:
        found = read_document(target, SAVEPOINT, Savepoint)
        if _identity(found, found.request) != _identity(manifest, request):
            raise _refused(target, f"it has checkpoint {found.checkpoint} of pipeline {found.pipeline_name} for {found.request}")
        target.sync(SAVEPOINT)
        return found
    if BEGUN_SAVEPOINT in names:
        try:
            begun = target.read(BEGUN_SAVEPOINT)
        except NotFoundError:  # another try has finished
            return _standing(home, manifest, target, request)
        if begun != _identity(manifest, request):
            raise _refused(target, "another savepoint was begun there")
    elif names:
        raise _refused(target, f"it is not empty: it has {names[0]}")
    return None


def _build(home: Files, manifest: Manifest, target: Files, request: RequestId | None, check: Callable[[], object]) -> Savepoint:
    needed = needed_files(home, manifest)
    with step(Step.SAVEPOINT_BEGIN):
        target.create(BEGUN_SAVEPOINT, _identity(manifest, request))
    with step(Step.SAVEPOINT_FILES):
        digests = _copied(home, manifest, target, needed, check)
    files = tuple(
        SavepointFile(path=path, size_bytes=size_bytes, sha256=sha256) for path, (size_bytes, sha256) in digests.items()
    )
    savepoint = Savepoint(
        nonce=manifest.nonce,
        pipeline=manifest.pipeline,
        pipeline_name=manifest.pipeline_name,
        incarnation=manifest.incarnation,
        checkpoint=manifest.checkpoint,
        drained=manifest.drained,
        request=request,
        taken_at=manifest.completed_at,
        size_bytes=sum(file.size_bytes for file in files),
        files=files,
    )
    check()
    with step(Step.SAVEPOINT_CREATE):
        create_document(target, SAVEPOINT, savepoint)
    _LOG.info("checkpoint %d is in %s: %d files, %d bytes", manifest.checkpoint, target.url, len(files), savepoint.size_bytes)
    return savepoint


def _copied(
    home: Files, manifest: Manifest, target: Files, needed: Mapping[str, NamedFile], check: Callable[[], object]
) -> dict[str, Digest]:
    """Copies the files of a savepoint. A table of deleted keys may be folded in the meantime: then it has the same keys in other files."""
    while True:
        try:
            return copy_files(target, needed, check)
        except CorruptDocumentError:
            now = needed_files(home, manifest)
            if now.keys() == needed.keys():
                raise
            needed = now


def copy_files(target: Files, needed: Mapping[str, NamedFile], check: Callable[[], object] = lambda: None) -> dict[str, Digest]:
    """Copies files into or out of a savepoint, durably. Existing correct files are left alone.

    Args:
        target: Target of the copies.
        needed: The files, by their paths there.
        check: Called before each file is copied, from several threads.

    Returns:
        The digests of the copies, sorted by path.

    Raises:
        CorruptDocumentError: A file is missing or was altered.
    """

    def place(path: str) -> Digest:
        check()
        return _copy(target, path, needed[path])

    digests = dict(zip(sorted(needed), run_all([partial(place, path) for path in sorted(needed)]), strict=True))
    end_copies(target, needed)
    return digests


def _copy(target: Files, path: str, file: NamedFile) -> Digest:
    try:
        found = _copy_once(target, path, file)
    except NotFoundError as error:
        raise altered(file.source.url, file.path, file.sha256, None) from error
    if damage := file.damage(found):
        raise damage
    return found


def _copy_once(target: Files, path: str, file: NamedFile) -> Digest:
    """Copies a file that another try may have copied. A correct file stays, because that try may still be running on another host."""
    try:
        return target.copy(file.source, file.path, path)
    except ConflictError:
        found = target.digest(path)
    if file.is_right(found) and (file.sha256 or found == file.source.digest(file.path)):
        return found
    target.delete(path)  # the host of the other try crashed before it was durable
    return target.copy(file.source, file.path, path)


def _identity(of: Manifest | Savepoint, request: RequestId | None) -> bytes:
    """Returns the bytes that identify the owner of a directory, before and after its savepoint is complete."""
    return canonical(_whose(of, request)) + b"\n"


def _whose(of: Manifest | Savepoint, request: RequestId | None) -> dict[str, Any]:
    return {"pipeline": of.pipeline, "incarnation": of.incarnation, "checkpoint": of.checkpoint, "request": request}


def _refused(target: Files, reason: str, remedy: str = "Name a new directory.") -> RejectedError:
    return RejectedError(
        f"{target.url} cannot be the savepoint's directory: {reason}.",
        safe="Nothing was written there. Complete checkpoints stay.",
        remedy=remedy,
        path=target.url,
    )
