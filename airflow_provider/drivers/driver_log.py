"""What a driver has said last, for whoever looks for the reason of its end."""

import json
import os
import socket
from pathlib import Path
from typing import Any

from airflow_provider.drivers.plain_files import open_plain

_LINE_BYTES = 4096
_TOLD_LINES = 50


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


def log_last_lines(log: Any, *paths: Path) -> None:
    """Tells in a task's log what a process has said last in its files on this host, or that there is nothing."""
    found = {path: lines for path in paths if (lines := last_lines(path, _TOLD_LINES))}
    for path, lines in found.items():
        log.error("The last %d lines of %s:\n%s", len(lines), path, "\n".join(lines))
    if not found:
        log.error("%s has nothing that the driver has said; it would be in %s.", socket.gethostname(), paths[0])


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        known = [str(entry[name]) for name in ("time", "level", "message", "exception") if entry.get(name)]
    except (ValueError, TypeError, AttributeError):
        return line
    return " ".join(known) if known else line
