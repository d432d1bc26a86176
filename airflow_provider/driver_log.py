"""What a driver has said last, for whoever looks for the reason of its end."""

import json
import os
from pathlib import Path

from airflow_provider.plain_files import open_plain

_LINE_BYTES = 4096


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


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        known = [str(entry[name]) for name in ("time", "level", "message", "exception") if entry.get(name)]
    except (ValueError, TypeError, AttributeError):
        return line
    return " ".join(known) if known else line
