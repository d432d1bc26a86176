"""Finds inputs whose files or tables do not exist, before Spark starts. A mistyped path is refused at once, by its name.

The functions of the inputs are called with a replacement of the session that records their paths. A function that does anything else
with it is left to Spark, as are paths that are patterns or not on a file system of this host.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_jobs.api.functions import PARAMS, SPARK, call
from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.source import Source, Static
from spark_jobs.runtime.inputs.file_source import FILE_FORMATS, is_pattern
from spark_jobs.runtime.inputs.source_kind import refused_input

_WITH_PATHS = frozenset({"delta", *FILE_FORMATS})


def check_paths(graph: Graph, parameters: BoundParameters) -> None:
    """Refuses inputs that read from a missing path of this host. Starts no Spark, writes nothing.

    Raises:
        InvalidPipelineError: Paths are missing. It names those of all inputs.
    """
    mistakes = Mistakes()
    inputs: list[Source | Static] = [*graph.sources.values(), *graph.statics.values()]
    for node in inputs:
        session = _Session()
        with suppress(Exception):  # it does more than read: with Spark it is called again, and its errors count
            call(node.function, {SPARK: session, PARAMS: parameters.values})
        with mistakes.noted():
            for path in _missing(session.paths):
                raise refused_input(
                    node.name,
                    f"reads {path}, which does not exist",
                    "Correct the path, or write the files or the table first.",
                )
    mistakes.check()


def _missing(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        url = urlsplit(path)
        if url.scheme not in ("", "file") or url.netloc not in ("", "localhost") or is_pattern(path):
            continue
        local = os.path.abspath(unquote(url.path) if url.scheme else path)
        try:
            os.stat(local)
        except (FileNotFoundError, NotADirectoryError):
            yield local
        except OSError:
            continue  # Spark reports its error


class _Session:
    """Replaces a session. It has only readers."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    @property
    def readStream(self) -> "_Reader":
        return _Reader(self.paths)

    @property
    def read(self) -> "_Reader":
        return _Reader(self.paths)


class _Reader:
    """Replaces a reader. It records the paths that are loaded."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
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
            self._paths.append(found)
        return _Frame()

    def __getattr__(self, name: str) -> Any:
        if name not in FILE_FORMATS:
            raise AttributeError(name)
        return lambda path, *_, **options: self.load(path, format=name)


class _Frame:
    """Replaces a frame that a reader returns. Each method returns another such frame."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self
