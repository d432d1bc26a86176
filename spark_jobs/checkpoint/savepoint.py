"""Savepoints: copies of a checkpoint that are the user's own.

A savepoint is a directory with everything that a restore needs: the manifest, its state and channel files, and what is staged and was
not known to be public when the checkpoint was taken, with the manifests of the checkpoints that have staged it. It refers to nothing
outside, so it can be moved; it shares no file with the home, so what happens to one of them does not happen to the other.

Invariants:

1. A savepoint exists if and only if ``savepoint.json`` does. It is written when everything that it names is durable, and deleted first.
2. A directory is written only if it is empty, or if it was this savepoint that was begun there. Several may be at the same one: nobody
   deletes a file that is right, so whoever ends it first has ended it. What was begun goes only once its request has been answered with
   an error: nobody will ever be told that it is whole.
3. Which checkpoints' rows it has is in its manifest, and does not depend on what has become public meanwhile.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from spark_jobs.checkpoint.named_files import NamedFile, NamedFiles, altered
from spark_jobs.checkpoint.savepoint_files import PARTS, needed_files
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.home.layout import BEGUN_SAVEPOINT, SAVEPOINT, manifest_path
from spark_jobs.home.places import Kind, check_deletable, check_savepoint, has_others, kinds_of, thing
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import ConflictError, CorruptDocumentError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.protocol.savepoint import Savepoint, SavepointFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.beside import at_once
from spark_jobs.storage.files import Digest, Files, create_document, end_copies, is_here, local_path, read_document
from spark_jobs.storage.table_uris import table_files

_LOG = logging.getLogger(__name__)
_BEGUN_MAX_BYTES = 1 << 20
_DISPOSE = "Name a directory that is not there yet; or, where nobody is at it any more, dispose of this one: spark-jobs dispose."


def export(
    home: Files,
    checkpoint: CheckpointId,
    target: Files,
    *,
    request: RequestId | None,
    check: Callable[[], object] = lambda: None,
) -> Savepoint:
    """Copies a complete checkpoint into a savepoint; durable on return.

    Idempotent: repeated after a crash at any step, or after its end, it comes to the same directory.

    Args:
        home: The home.
        checkpoint: The checkpoint. Those before it that it needs are found.
        target: The directory, which is made; empty, or where this very export was begun.
        request: Whose savepoint it is.
        check: Called before each file is copied, from several threads, and before the savepoint is made to exist. What it raises is raised
            here; what was copied stays.

    Raises:
        RejectedError: There is no such checkpoint, or the directory holds something else or belongs to somebody else. Nothing was
            written.
        CorruptDocumentError: A file that the checkpoint names is gone or was altered, by path. There is no savepoint.
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
    """Reads a savepoint and the manifest of its checkpoint, both whole; its files are looked at by :func:`verify`.

    Raises:
        RejectedError: The directory is no savepoint.
        CorruptDocumentError: ``savepoint.json`` or the manifest is torn, altered, or another one's.
    """
    try:
        found = read_document(savepoint, SAVEPOINT, Savepoint)
    except NotFoundError as error:
        begun = BEGUN_SAVEPOINT in savepoint.names("")
        raise RejectedError(
            f"{savepoint.url} is no savepoint: it has no {SAVEPOINT}.",
            exists="An export has begun there and has not come to its end." if begun else "",
            safe="Nothing was changed.",
            remedy="Repeat the request that it is for, or dispose of it." if begun else "Give the directory of a savepoint.",
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
    """Returns every file that a savepoint names; errors as :func:`read_savepoint`."""
    found, _ = read_savepoint(savepoint)
    files = [NamedFile(savepoint, file.path, file.size_bytes, file.sha256) for file in found.files]
    return NamedFiles([found.checkpoint], files)


def verify(savepoint: Files, progress: Callable[[int], object] = lambda size_bytes: None) -> Savepoint:
    """Reads every file of a savepoint and compares its size and hash; writes nothing.

    Args:
        savepoint: Its directory.
        progress: Called with the size of each file once it was read, from several threads.

    Raises:
        RejectedError: The directory is no savepoint.
        CorruptDocumentError: A file is gone or was altered, by path: the first one by name.
    """
    found, _ = read_savepoint(savepoint)
    if damage := named_by_savepoint(savepoint).verify(progress):
        raise damage[0]
    return found


def dispose(savepoint: Files, needed_by: Iterable[str] = ()) -> None:
    """Deletes a savepoint, durably; idempotent. One that was begun and is not whole goes, too.

    Args:
        savepoint: Its directory. What somebody has put beside the savepoint's own files and directories stays.
        needed_by: Who needs it, in words: then it stays.

    Raises:
        RejectedError: The directory is no savepoint, or is another thing, too, or somebody needs it. Nothing was deleted.
        CorruptDocumentError: ``savepoint.json`` is torn: nobody knows what belongs to it. Nothing was deleted.
        StorageError: Not everything was deleted; repeat.
    """
    if savepoint.names(""):
        _dispose(savepoint, list(needed_by))
    _remove_directory(savepoint)


def begun_with(home: Files, target: Files, request: RequestId) -> Manifest | None:
    """Returns the checkpoint of which a request's savepoint is whole, or was begun; None if it was not, or the home has it no more.

    Whoever answers the request later goes on with that one, whatever the newest checkpoint is: another cannot be where it is begun.

    Raises:
        CorruptDocumentError: A document is torn or altered.
        StorageError: The directory or the home cannot be looked at.
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
    """Returns the request whose export was begun in a directory and has not ended; None if there is none, or nobody can tell.

    Raises:
        StorageError: The directory cannot be looked at.
    """
    names = target.names("")
    found = _begun(target) if BEGUN_SAVEPOINT in names and SAVEPOINT not in names else None
    return None if not found or not found.get("request") else RequestId(found["request"])


def abandon(manifest: Manifest, target: Files, *, request: RequestId) -> None:
    """Deletes what an export has begun and not ended, once its request has been answered with an error; idempotent, durable on return.

    What is whole stays, and so does what is somebody else's.

    Args:
        manifest: The checkpoint that was exported.
        target: The directory.
        request: Whose savepoint it was to be.

    Raises:
        StorageError: Not everything was deleted; repeat.
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
            remedy="Wait until they have what they need of it: spark-jobs status shows them.",
            path=savepoint.url,
            needed_by=needed_by,
        )
    if SAVEPOINT in names:
        found = read_document(savepoint, SAVEPOINT, Savepoint)
        with step(Step.SAVEPOINT_VOID):  # it becomes one that is not whole: whoever repeats this finds what to do
            savepoint.create(BEGUN_SAVEPOINT, _identity(found, found.request))
            savepoint.delete(SAVEPOINT)
    names = savepoint.names("")
    check_deletable(Kind.SAVEPOINT, savepoint, names, PARTS)  # another disposer may have ended, and a home have begun there
    _remove(savepoint, names)


def _remove(savepoint: Files, names: Iterable[str]) -> None:
    with step(Step.SAVEPOINT_REMOVE):
        for name in set(PARTS) & set(names):
            savepoint.delete(name)
        savepoint.delete(BEGUN_SAVEPOINT)


def _remove_directory(savepoint: Files) -> None:
    if is_here(savepoint):  # an object store has no directories
        with suppress(OSError):  # what is left is somebody else's
            local_path(savepoint).rmdir()


def check_target(home: Files, target: Files, tables: Iterable[str], request: RequestId) -> None:
    """Refuses a directory in which a savepoint of a checkpoint that is still to be taken could not be; writes nothing.

    Args:
        home: The home.
        target: The directory.
        tables: URLs of the sinks' tables.
        request: Who asks for it: what it has begun there may be ended.

    Raises:
        RejectedError: It is another thing or inside one, or has other things: also what was begun for another request.
        StorageError: It cannot be looked at.
    """
    names = target.names("")
    _check_place(home, target, names, tables)
    if SAVEPOINT in names:
        found = read_document(target, SAVEPOINT, Savepoint)
        if found.request != request:
            raise _refused(target, f"it has checkpoint {found.checkpoint} of pipeline {found.pipeline_name} for {found.request}")
    elif BEGUN_SAVEPOINT in names:
        begun = _begun(target)
        if begun is None:  # another try has come to its end
            check_target(home, target, tables, request)
        elif begun.get("request") != request:
            raise _refused(target, f"a savepoint was begun there for {begun.get('request') or 'somebody else'}", _DISPOSE)
    elif names:
        raise _refused(target, f"it is not empty: it has {names[0]}")


def _begun(target: Files) -> Mapping[str, Any] | None:
    """Returns what ``exporting.json`` says of the export that was begun in a directory; None if it is gone, empty if it is unreadable."""
    try:
        found = json.loads(target.read(BEGUN_SAVEPOINT, _BEGUN_MAX_BYTES))
    except NotFoundError:
        return None
    except (ValueError, RecursionError, CorruptDocumentError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_place(home: Files, target: Files, names: Iterable[str], tables: Iterable[str]) -> None:
    check_savepoint(home, target, names, [thing(Kind.TABLE, table_files(table)) for table in tables])


def _manifest(home: Files, checkpoint: CheckpointId) -> Manifest:
    try:
        return CheckpointStore(home).manifest(checkpoint)
    except NotFoundError as error:
        raise RejectedError(
            f"There is no complete checkpoint {checkpoint} in {home.url}.",
            safe="Nothing was written.",
            remedy="Choose one that spark-jobs checkpoints lists.",
            checkpoint=checkpoint,
        ) from error


def _standing(home: Files, manifest: Manifest, target: Files, request: RequestId | None) -> Savepoint | None:
    """Returns the savepoint that is there already; None if it is still to be made, and may be."""
    names = target.names("")
    _check_place(home, target, names, (cut.table for cut in manifest.sinks.values()))
    if SAVEPOINT in names:
        found = read_document(target, SAVEPOINT, Savepoint)
        if _identity(found, found.request) != _identity(manifest, request):
            raise _refused(target, f"it has checkpoint {found.checkpoint} of pipeline {found.pipeline_name} for {found.request}")
        target.sync(SAVEPOINT)
        return found
    if BEGUN_SAVEPOINT in names:
        try:
            begun = target.read(BEGUN_SAVEPOINT)
        except NotFoundError:  # another try has come to its end
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
    """Copies what a savepoint needs. A table of deleted keys may be folded meanwhile: then it has the same in other files."""
    while True:
        try:
            return copy_files(target, needed, check)
        except CorruptDocumentError:
            now = needed_files(home, manifest)
            if now.keys() == needed.keys():
                raise
            needed = now


def copy_files(target: Files, needed: Mapping[str, NamedFile], check: Callable[[], object] = lambda: None) -> dict[str, Digest]:
    """Copies files into or out of a savepoint, durably. One that is there with the right bytes is left.

    Args:
        target: Where they are copied to.
        needed: The files, by their paths there.
        check: Called before each file is copied, from several threads.

    Returns:
        What was copied, sorted by path.

    Raises:
        CorruptDocumentError: A file is gone or was altered.
    """

    def place(path: str) -> Digest:
        check()
        return _copy(target, path, needed[path])

    digests = dict(zip(sorted(needed), at_once([partial(place, path) for path in sorted(needed)]), strict=True))
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
    """Copies a file that another try may have copied: one that is right stays, because that try may be at it still, on another host."""
    try:
        return target.copy(file.source, file.path, path)
    except ConflictError:
        found = target.digest(path)
    if file.is_right(found) and (file.sha256 or found == file.source.digest(file.path)):
        return found
    target.delete(path)  # its host has gone down before it was durable
    return target.copy(file.source, file.path, path)


def _identity(of: Manifest | Savepoint, request: RequestId | None) -> bytes:
    """Returns the bytes that say whose directory it is, before and after its savepoint is whole."""
    return canonical(_whose(of, request)) + b"\n"


def _whose(of: Manifest | Savepoint, request: RequestId | None) -> dict[str, Any]:
    return {"pipeline": of.pipeline, "incarnation": of.incarnation, "checkpoint": of.checkpoint, "request": request}


def _refused(target: Files, reason: str, remedy: str = "Name a directory that is not there yet.") -> RejectedError:
    return RejectedError(
        f"{target.url} cannot be the savepoint's directory: {reason}.",
        safe="Nothing was written there. Checkpoints that are complete stay.",
        remedy=remedy,
        path=target.url,
    )
