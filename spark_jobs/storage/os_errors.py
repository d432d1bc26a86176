"""Translates the operating system's errors about files into this product's errors."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    CorruptDocumentError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.storage.plain_files import NotPlainFileError

_ROOM_BYTES = 1024 * 1024
"""With less a file system counts as full. A failed write may have given some of its room back."""
_KINDS: dict[int, type[StreamPipelineError]] = (
    dict.fromkeys((errno.ENOSPC, errno.EDQUOT), StorageFullError)
    | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), AccessDeniedError)
    | dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), NotFoundError)
    | dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), InvalidParameterError)
    | dict.fromkeys((errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL), MissingRequirementError)
)
_REMEDIES: dict[type[StreamPipelineError], str] = {
    StorageFullError: "Free space or raise the quota, then repeat.",
    AccessDeniedError: "Give this user the right to write there, on a file system that has hard links.",
    NotFoundError: "Check the path; if the home has lost the file, restore it from a copy.",
    InvalidParameterError: "Use a shorter path.",
    MissingRequirementError: "Use a file system with hard links and durable directories.",
    StorageError: "Repeat; if it goes on, check the disk or the mount.",
}


@contextmanager
def translated(target: str, *, outcome_unknown: bool = False) -> Iterator[None]:
    """Translates the system's errors into this product's errors.

    Args:
        target: The file of the calls inside.
        outcome_unknown: True if the calls may be partly done.

    Raises:
        CorruptDocumentError: The file is not a regular file.
        StorageError: Another ``OSError``, as this class or a subclass.
    """
    try:
        yield
    except NotPlainFileError as error:
        raise CorruptDocumentError(
            f"{target} is not a regular file, or is behind a link.",
            remedy="Check who may write there. Put a regular file in its place.",
            path=target,
        ) from error
    except OSError as error:
        if outcome_unknown:
            raise unknown_outcome(target, error) from error
        raise storage_error(target, error) from error


def storage_error(target: str, error: OSError) -> StreamPipelineError:
    """Returns the system's error about a file as this product's error."""
    kind = _KINDS.get(error.errno or 0, StorageError)
    return kind(
        f"{target}: {error.strerror or error}.",
        safe="No file is partly written, and the call may be repeated.",
        remedy=_REMEDIES[kind],
        path=target,
        errno=error.errno,
    )


def is_full(error: BaseException) -> bool:
    """Returns True if the system has refused an operation because no space or no quota is left."""
    return isinstance(error, OSError) and _KINDS.get(error.errno or 0) is StorageFullError


def without_room(paths: Iterable[str]) -> list[str]:
    """Returns the directories of this host, of some paths or ``file:`` URLs, in which hardly any room is left now."""
    found = []
    for path in dict.fromkeys(path.removeprefix("file://") for path in paths):
        with suppress(OSError, ValueError):  # in a store, or not there
            room = os.statvfs(path)
            if room.f_bavail * room.f_frsize < _ROOM_BYTES or (room.f_files and room.f_favail == 0):
                found.append(path)
    return found


def taken(target: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{target} exists already.",
        safe="It was not changed.",
        remedy="Check the file, and delete it if it is not needed.",
        path=target,
    )


def other_contents(target: str, expected: bytes, found: bytes | None) -> AlreadyExistsError:
    """Returns the error of a create that has found something else under the name. ``found`` is None if that is not a file."""
    return AlreadyExistsError(
        f"{target} exists with other contents.",
        safe="The file was not changed.",
        remedy="Read the file and decide again.",
        path=target,
        expected=sha256(expected),
        found=None if found is None else sha256(found),
    )


def unknown_outcome(target: str, error: OSError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{target} may or may not be durable: {error.strerror or error}.",
        exists="If the file exists, it is complete.",
        remedy="Repeat with the same contents.",
        path=target,
        errno=error.errno,
    )


def overtaken(target: str) -> ConflictError:
    return ConflictError(
        f"Another process wrote or deleted {target} at the same time.",
        safe="The file has the bytes of one process alone.",
        remedy="Read the file, then repeat.",
        path=target,
    )
