"""What a process of ``spark-jobs`` has said last, for whoever looks for the reason of its end."""

import json
import os
import re
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from pydantic import BaseModel

from spark_jobs.control.attempts import LOGS_KEPT
from spark_jobs.home.layout import log_path, output_path
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import AccessDeniedError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.protocol.reports import reported_error
from spark_jobs.protocol.visible import visible
from spark_jobs.storage.files import Files, is_here
from spark_jobs.storage.plain_files import open_plain

_LINE_BYTES = 4096
_SHOWN_MAX_BYTES = 4 << 20


class _Failure(BaseModel):
    """What a command of ``spark-jobs`` answers when it did not do what was asked."""

    error: ErrorReport


@dataclass(frozen=True)
class LogFile:
    """What a driver says in a home.

    Args:
        name: Its path in the home.
        path: Where this host would have it; None where it has not.
        shown: The home whose own storage shows its end to hosts that do not have the file.
    """

    name: str
    path: Path | None
    shown: Files | None = None

    def __str__(self) -> str:
        return f"{self.shown.url}/{self.name}" if self.shown and not (self.path and self.path.exists()) else str(self.path)

    def last_lines(self, count: int) -> list[str]:
        """As the function of this name."""
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
    """The own log of an attempt's driver, JSON lines."""
    return _log_file(files, log_path(attempt), files.local(log_path(attempt)))


def driver_output(files: Files, attempt: AttemptNumber) -> LogFile:
    """What an attempt's driver, or ``spark-submit``, has printed."""
    return _log_file(files, output_path(attempt), output_place(files, attempt))


def output_place(files: Files, attempt: AttemptNumber, *, driver_is_here: bool = False) -> Path:
    """Where this host keeps what a process prints that it starts for an attempt.

    In the home, or in its workspace where this host has that; else in a directory of its own.

    Args:
        files: The home.
        attempt: The attempt.
        driver_is_here: The process is the driver: this host has the workspace, or makes it.
    """
    place = files.local(output_path(attempt))
    if place is not None and (driver_is_here or is_here(files) or place.parents[1].is_dir()):
        return place
    return _own_directory() / sha256(files.url.encode())[:12] / output_path(attempt)


def made_output_place(files: Files, attempt: AttemptNumber, *, driver_is_here: bool) -> Path:
    """As :func:`output_place`, for who is going to write there; what the oldest attempts have left in a directory of this host's own goes.

    Raises:
        AccessDeniedError: Somebody else has made that directory.
    """
    place, own = output_place(files, attempt, driver_is_here=driver_is_here), _own_directory()
    if place.is_relative_to(own):
        with suppress(FileExistsError):
            own.mkdir(mode=0o700)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise AccessDeniedError(
                f"{own} is not a directory of this user alone.",
                safe="Nothing was started.",
                remedy="Remove it, or give the workers another TMPDIR.",
                path=str(own),
            )
        place.with_name(Path(output_path(AttemptNumber(attempt - LOGS_KEPT))).name).unlink(missing_ok=True)
    return place


def _own_directory() -> Path:
    return Path(gettempdir()) / f"spark-jobs-{os.getuid()}"


def _log_file(files: Files, name: str, path: Path | None) -> LogFile:
    return LogFile(name, path, None if is_here(files) else files)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log on this host, at most ``count``; empty where there is no such file, or only a link.

    JSON lines become time, level and message. At most 4 KiB per line that is asked for are read.
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
    """Tells in a task's log what a process has said last, as far as this host can see, or that there is nothing."""
    found = {each: lines for each in logs if (lines := each.last_lines(_TOLD_LINES))}
    for each, lines in found.items():
        log.error("The last %d lines of %s:\n%s", len(lines), each, "\n".join(lines))
    if not found:
        log.error("%s has nothing that the driver has said; it would be in %s.", socket.gethostname(), logs[0])


def answered_error(output: str) -> StreamPipelineError | None:
    """The error that a command has answered with, where its answer is in what it has printed."""
    for start in reversed([found.start() for found in re.finditer(r"^\{$", output, re.MULTILINE)]):
        with suppress(ValueError):  # as a validation's is
            answer, _ = json.JSONDecoder().raw_decode(output, start)
            return reported_error(_Failure.model_validate(answer).error)
    return None


def _at_most(chunks: Generator[bytes, None, None], size_bytes: int) -> Iterator[bytes]:
    """What comes before so many bytes have come: no driver shows more."""
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
