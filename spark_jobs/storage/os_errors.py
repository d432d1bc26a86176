"""What the operating system says about files, as this product's errors."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

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
    """The one place where the system's errors become ours.

    Args:
        target: What the calls inside are about.
        outcome_unknown: Whether what they do may be half done.

    Raises:
        CorruptDocumentError: There is something else than a regular file.
        StorageError: Or one of its kin, for another ``OSError`` inside.
    """
    try:
        yield
    except NotPlainFileError as error:
        raise CorruptDocumentError(
            f"{target} is not a regular file, or there is a link on the way to it.",
            safe="It was not read, and nothing was changed.",
            remedy="Look who may write there. Put the file itself in its place.",
            path=target,
        ) from error
    except OSError as error:
        if outcome_unknown:
            raise unknown_outcome(target, error) from error
        raise storage_error(target, error) from error


def storage_error(target: str, error: OSError) -> StreamPipelineError:
    """Returns what the system has said about a file as an error of ours."""
    kind = _KINDS.get(error.errno or 0, StorageError)
    return kind(
        f"{target}: {error.strerror or error}.",
        safe="No file is half-written, and the call may be repeated.",
        remedy=_REMEDIES[kind],
        path=target,
        errno=error.errno,
    )


def is_full(error: BaseException) -> bool:
    """Returns whether the system has refused something because no space, or no quota, is left."""
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
        remedy="Look at it, and remove it if nobody needs it.",
        path=target,
    )


def unknown_outcome(target: str, error: OSError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{target} may or may not be durable: {error.strerror or error}.",
        exists="If it is there, it is whole.",
        remedy="Repeat with the same contents.",
        path=target,
        errno=error.errno,
    )


def overtaken(target: str) -> ConflictError:
    return ConflictError(
        f"Somebody else wrote or removed {target} at the same time.",
        safe="Nothing was mixed.",
        remedy="Look again, then repeat.",
        path=target,
    )
