"""Is a driver at work in this home? Answered by the locks its processes hold, and from other hosts by its heartbeat; never by a pid."""

import fcntl
import os
import socket
import struct
from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import AttemptDocument, RunState
from spark_jobs.storage.files import Files

DRIVER_LOCK = "work/driver.lock"
"""Held by the driver's Python process from its first to its last moment."""
JVM_LOCK = "work/jvm.lock"
"""Held by the driver's JVM: it can outlive a killed Python process for some seconds and still run a batch."""
HEARTBEAT_AGE_MAX_S = 60.0
_FLOCK = "hhqqi4x"


def local_path(files: Files, path: str) -> Path:
    """Where a file of a local home is on this host."""
    return Path(files.url.removeprefix("file://")) / path


def locked(path: Path) -> bool:
    """Whether another process holds the POSIX lock on ``path``; takes no lock itself."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def driver_at_work(files: Files) -> bool:
    """Whether a driver holds this home, as far as this host can tell."""
    if locked(local_path(files, DRIVER_LOCK)) or locked(local_path(files, JVM_LOCK)):
        return True
    attempt = Attempts(files).latest()
    return attempt is not None and attempt.host != socket.gethostname() and _heartbeat_is_fresh(files, attempt)


def _heartbeat_is_fresh(files: Files, attempt: AttemptDocument) -> bool:
    status = read_status(files)
    if status is None or status.attempt != attempt.attempt or status.state in (RunState.DONE, RunState.FAILED):
        return False
    return (datetime.now(UTC) - status.updated_at).total_seconds() < HEARTBEAT_AGE_MAX_S
