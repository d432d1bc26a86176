"""Reads the last lines that a ``spark-jobs`` process has logged or printed, to show why it ended."""

import json
import os
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from spark_jobs.control.attempts import LOGS_KEPT
from spark_jobs.home.layout import log_path, output_path
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import AccessDeniedError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.protocol.visible import visible
from spark_jobs.storage.files import Files, is_mounted
from spark_jobs.storage.plain_files import open_plain

_LINE_BYTES = 4096
_SHOWN_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class LogFile:
    """A file in a home into which a driver writes its log or its output.

    Args:
        name: Its path in the home.
        path: The file on this host, which need not exist. None: this host cannot have it.
        shown: The home, if its storage shows the end of the file to other hosts.
    """

    name: str
    path: Path | None
    shown: Files | None = None

    def __str__(self) -> str:
        return f"{self.shown.url}/{self.name}" if self.shown and not (self.path and self.path.exists()) else str(self.path)

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines, at most ``count``; see :func:`last_lines`."""
        here = last_lines(self.path, count) if self.path else []
        return here or self._shown_lines(count)

    def _shown_lines(self, count: int) -> list[str]:
        try:
            text = b"".join(_at_most(self.shown.chunks(self.name), _SHOWN_MAX_BYTES)) if self.shown else b""
        except StreamPipelineError:
            return []
        return [_readable(line) for line in text.decode(errors="replace").splitlines()[-count:]]


_TOLD_LINES = 50


def driver_log(files: Files, attempt: AttemptNumber) -> LogFile:
    """Returns the log file of an attempt's driver, in JSON lines."""
    return _log_file(files, log_path(attempt), files.local(log_path(attempt)))


def driver_output(files: Files, attempt: AttemptNumber) -> LogFile:
    """Returns the file with the standard output of an attempt's driver, or of ``spark-submit``."""
    return _log_file(files, output_path(attempt), output_place(files, attempt))


def output_place(files: Files, attempt: AttemptNumber, *, driver_is_here: bool = False, temporary: Path | None = None) -> Path:
    """Returns the file on this host for the output of a process that this host starts for an attempt.

    The file is in the home, or in the home's cache if this host has it. Otherwise it is in a directory of this user.

    Args:
        files: The home.
        attempt: The attempt.
        driver_is_here: The process is the driver. This host then has the cache, or makes it.
        temporary: A directory for temporary files; None: that of this host.
    """
    place = files.local(output_path(attempt))
    if place is not None and (driver_is_here or is_mounted(files) or place.parents[1].is_dir()):
        return place
    return _own_directory(temporary) / sha256(files.url.encode())[:12] / output_path(attempt)


def made_output_place(files: Files, attempt: AttemptNumber, *, driver_is_here: bool, temporary: Path | None = None) -> Path:
    """Prepares the file of :func:`output_place` for writing. In this user's own directory, deletes the output of the oldest attempts.

    Raises:
        AccessDeniedError: Another user has made that directory.
    """
    place = output_place(files, attempt, driver_is_here=driver_is_here, temporary=temporary)
    own = _own_directory(temporary)
    if place.is_relative_to(own):
        with suppress(FileExistsError):
            own.mkdir(mode=0o700)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise AccessDeniedError(
                f"{own} is not a directory of this user alone.",
                remedy="Remove it, or give the workers another TMPDIR.",
                path=str(own),
            )
        place.with_name(Path(output_path(AttemptNumber(attempt - LOGS_KEPT))).name).unlink(missing_ok=True)
    return place


def _own_directory(temporary: Path | None) -> Path:
    return (temporary or Path(gettempdir())) / f"spark-jobs-{os.getuid()}"


def _log_file(files: Files, name: str, path: Path | None) -> LogFile:
    return LogFile(name, path, None if is_mounted(files) else files)


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last lines of a log on this host, at most ``count``. Returns none if the file does not exist or is a link.

    A JSON line is shown as time, level and message. Reads at most 4 KiB per line.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size_bytes - count * _LINE_BYTES))
            lines = stream.read(count * _LINE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [_readable(line) for line in lines[-count:]]


def log_last_lines(log: Any, *logs: LogFile) -> None:
    """Writes the last lines of a process into a task's log, as far as this host can read them."""
    found = {each: lines for each in logs if (lines := each.last_lines(_TOLD_LINES))}
    for each, lines in found.items():
        log.error("The last %d lines of %s:\n%s", len(lines), each, "\n".join(lines))
    if not found:
        log.error("The driver has written nothing that %s can read; its output would be in %s.", socket.gethostname(), logs[0])


def _at_most(chunks: Generator[bytes, None, None], size_bytes: int) -> Iterator[bytes]:
    """Yields chunks until ``size_bytes`` have come. No driver shows a longer end."""
    with closing(chunks):
        for chunk in chunks:
            yield chunk
            size_bytes -= len(chunk)
            if size_bytes <= 0:
                return


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        known = [str(entry[name]) for name in ("time", "level", "message", "exception") if entry.get(name)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        known = []
    return visible(" ".join(known) or line)
