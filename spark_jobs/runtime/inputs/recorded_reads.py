"""Records what the functions of inputs read, before Spark starts.

A function is called with a replacement of the session that records the paths of its readers. A function that does anything else with it
fails there, and is called again when Spark runs.
"""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_jobs.api.functions import PARAMS, SPARK, call
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.source import Source, Static
from spark_jobs.runtime.inputs.file_source import FILE_FORMATS

_WITH_PATHS = frozenset({"delta", *FILE_FORMATS})


@dataclass(frozen=True)
class RecordedReads:
    """What the function of an input reads."""

    paths: tuple[str, ...]
    """Paths, URLs and patterns, as the function has written them."""
    complete: bool
    """False if the function may read more than these paths."""


def recorded_reads(node: Source | Static, parameters: BoundParameters) -> RecordedReads:
    """Returns what the function of an input reads. Starts no Spark, reads and writes nothing itself."""
    session = _Session()
    try:
        frame = call(node.function, {SPARK: session, PARAMS: parameters.values})
    except Exception:  # noqa: BLE001 - it does more than read: with Spark its errors count
        frame = None
    return RecordedReads(tuple(session.paths), complete=isinstance(frame, _Frame) and not session.others)


def path_on_this_host(path: str) -> str | None:
    """Returns the absolute path for a path or a URL of a reader, or None if it is in another file system."""
    url = urlsplit(path)
    if url.scheme not in ("", "file") or url.netloc not in ("", "localhost"):
        return None
    return os.path.abspath(unquote(url.path) if url.scheme else path)


class _Session:
    """Replaces a session. It has only readers."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.others = False
        """True if a reader was used for anything but one path."""

    @property
    def readStream(self) -> "_Reader":
        return _Reader(self)

    @property
    def read(self) -> "_Reader":
        return _Reader(self)


class _Reader:
    """Replaces a reader. It records the paths that are loaded."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._format = ""
        self._path: Any = None

    def format(self, source: str) -> "_Reader":
        self._format = source
        return self

    def schema(self, schema: Any) -> "_Reader":
        return self

    def option(self, key: str, value: Any) -> "_Reader":
        return self.options(**{key: value})

    def options(self, **options: Any) -> "_Reader":
        self._path = next((value for key, value in options.items() if key.lower() == "path"), self._path)
        return self

    def load(self, path: Any = None, format: str | None = None, schema: Any = None, **options: Any) -> "_Frame":
        self.options(**options)
        found = path or self._path
        if str(format or self._format).lower() in _WITH_PATHS and isinstance(found, str):
            self._session.paths.append(found)
        else:
            self._session.others = True
        return _Frame()

    def __getattr__(self, name: str) -> Any:
        if name not in FILE_FORMATS:
            raise AttributeError(name)
        return lambda path, *_, **options: self.load(path, format=name)


class _Frame:
    """Replaces a frame that a reader returns. Each method returns another such frame."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self
