"""Finds out whether a driver is at work in a home: by the locks of its processes, or from other hosts by its heartbeat.

Pids are not used.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.home import HomeInStore
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK, publication_lock_path
from spark_jobs.protocol.documents import AttemptDocument, RunState, Status
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import Files
from spark_jobs.storage.os_errors import translated
from spark_jobs.storage.plain_files import NotPlainFileError, open_plain
from spark_jobs.storage.system import DIRECTORY_MODE, FILE_MODE

HEARTBEAT_AGE_MAX_S = 60.0
_FLOCK = "hhqqi4x"
_NOTE_MAX_BYTES = 4096
_mutex = Lock()
_held_here: dict[str, str] = {}
"""The locks of this process with their notes.

POSIX locks belong to the whole process, and are lost when any descriptor of the file is closed. So neither a second thread that wants the
lock nor one that only looks may open the file.
"""


@contextmanager
def holding(path: Path, note: str) -> Iterator[None]:
    """Holds the lock on ``path`` while the context is open. Others can read ``note`` in the file.

    Raises:
        BlockingIOError: Another process or another thread of this one holds it.
        StorageError: The lock cannot be taken here. May be a subclass.
    """
    key = _key(path)
    with _mutex:
        if key in _held_here:
            raise BlockingIOError(errno.EAGAIN, "this process holds the lock", str(path))
        _held_here[key] = note
    try:
        descriptor = _take(path, note)
        if descriptor is None:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path))
        try:
            yield
        finally:
            os.close(descriptor)
    finally:
        with _mutex:
            del _held_here[key]


def noted(path: Path) -> str:
    """Returns the note of the holder of the lock on ``path``.

    Raises:
        StorageError: The file cannot be read. May be a subclass.
    """
    note = _held_note(path)
    if note is not None:
        return note
    with translated(str(path)), open(_opened(path), "rb") as file:
        return file.read(_NOTE_MAX_BYTES).decode(errors="replace")


def locked(path: Path) -> bool:
    """Returns True if a process holds the lock on ``path``. Does not change any lock.

    Raises:
        StorageError: The lock cannot be checked. May be a subclass.
    """
    if _held_note(path) is not None:
        return True
    with translated(str(path)):
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            return False
        try:
            question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
            return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK
        finally:
            os.close(descriptor)


def _opened(path: Path) -> int:
    """Opens a lock's file for reading without waiting. The reader may be another user than the holder."""
    return open_plain(path, root=path.parent)


def _held_note(path: Path) -> str | None:
    """Returns the note of this process if it holds the lock on ``path``, otherwise None."""
    with _mutex:
        return _held_here.get(_key(path)) if _held_here else None  # most processes hold none, and need not resolve the path


def _key(path: Path) -> str:
    return os.path.realpath(path)


def _take(path: Path, note: str) -> int | None:
    """Takes the lock on a file and returns a descriptor that holds it, or None if another process holds it."""
    with translated(str(path)):
        while True:
            path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            if path.is_symlink():
                raise NotPlainFileError(errno.ELOOP, "not a regular file", str(path))
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
            except FileNotFoundError:  # the directory was deleted since, with the lock of a refused start
                continue
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise NotPlainFileError(errno.EINVAL, "not a regular file", str(path))
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(path, descriptor):  # its holder has deleted the file since: the lock on it protects nothing
                    os.close(descriptor)
                    continue
                os.truncate(descriptor, 0)
                os.write(descriptor, note.encode())
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
            return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Returns True if the open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def claimed_request(files: Files) -> RequestId | None:
    """Returns the request that a driver on this host is working on, or None if there is none or it has just begun."""
    lock = files.local(DRIVER_LOCK)
    return RequestId(noted(lock)) or None if lock and locked(lock) else None


def claimed_by_another(files: Files, request: RequestId) -> bool:
    """Returns True if a driver on this host is working on another request than ``request``."""
    return claimed_request(files) not in (None, request)


def driver_at_work(files: Files) -> bool:
    """Returns True if a driver holds this home, as far as this host can tell."""
    if is_locked(files):
        return True
    attempt = Attempts(files).latest()
    return attempt is not None and works_elsewhere(files, attempt)


def is_locked(files: Files) -> bool:
    """Returns True if a process on this host holds this home: a driver or its JVM."""
    return any(lock and locked(lock) for lock in map(files.local, (DRIVER_LOCK, JVM_LOCK)))


def publisher_at_work(files: Files, request: RequestId) -> bool:
    """Returns True if a process on this host answers this request for a publication."""
    lock = files.local(publication_lock_path(request))
    return lock is not None and locked(lock)


def works_elsewhere(files: Files, attempt: AttemptDocument) -> bool:
    """Returns True if the driver of this attempt has no lock that this host can see, but a fresh heartbeat."""
    return is_elsewhere(files, attempt) and is_fresh(read_status(files), attempt)


def is_elsewhere(files: Files, attempt: AttemptDocument) -> bool:
    """Returns True if a driver of this attempt would have no lock that this host can see."""
    if attempt.host != socket.gethostname():
        return True
    if not isinstance(files, HomeInStore):
        return False
    return not _has_its_lock(files, attempt)


def _has_its_lock(files: Files, attempt: AttemptDocument) -> bool:
    """Returns True if the lock in this host's cache is that of this attempt's driver.

    Containers, and also two users, may share the host's name but not its disk.
    """
    lock = files.local(DRIVER_LOCK)
    return lock is not None and lock.is_file() and noted(lock) == attempt.request


def is_fresh(status: Status | None, attempt: AttemptDocument) -> bool:
    """Returns True if the newest heartbeat of the home is recent and from the driver of this attempt."""
    if status is None or status.attempt != attempt.attempt or status.state in (RunState.DONE, RunState.FAILED):
        return False
    return (datetime.now(UTC) - status.updated_at).total_seconds() < HEARTBEAT_AGE_MAX_S
