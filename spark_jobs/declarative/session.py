"""The variable ``spark`` in a project's files.

A flow is called twice: before Spark starts, to find its inputs, and as a stage, where each read returns the frame of an input. The caller
answers its reads: see :class:`Reads`.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import builtin
from pyspark.sql.types import StructType

from spark_jobs.api.user_module import SessionAtImportError
from spark_jobs.protocol.codec import sha256

_GIVES_FRAME = frozenset({"changes", "csv", "jdbc", "json", "load", "orc", "parquet", "table", "text", "xml"})
_BY_NAME = frozenset({"changes", "table"})
_PLACES = ("path", "paths", "subscribe", "subscribepattern", "assign", "dbtable")
"""The options that name the place to read, if no argument does."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
_NAME_LENGTH_MAX = 50
SPARKS = "spark."
"""The prefix of the names of Spark's settings. A project may have settings of its own."""


class NeedsSparkError(Exception):
    """Raised if a flow uses a value that only Spark knows while its inputs are searched."""


class Reads(Protocol):
    """Answers the reads of a flow while it is called."""

    def dataset(self, name: str, read: "Read") -> Any:
        """Returns the frame of a dataset of the project, or None if ``name`` is not one."""

    def outside(self, read: "Read") -> Any:
        """Returns the frame of something outside of the project."""

    def sql(self, text: str, *arguments: Any, **options: Any) -> Any:
        """Returns the frame of a query. The arguments are those of ``spark.sql``."""

    def attribute(self, name: str) -> Any:
        """Returns another attribute of the session."""


_READS: ContextVar[Reads | None] = ContextVar("reads", default=None)


def _reads() -> Reads:
    found = _READS.get()
    if found is None:
        raise SessionAtImportError("spark")
    return found


@dataclass(frozen=True)
class Call:
    """A call of a reader's method."""

    method: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """The calls on ``spark.readStream``, or on ``spark.read``, that give a frame."""

    streaming: bool
    calls: tuple[Call, ...]

    def frame(self, spark: Any) -> Any:
        """Repeats the calls on a session."""
        reader = spark.readStream if self.streaming else spark.read
        for call in self.calls:
            reader = getattr(reader, call.method)(*call.arguments, **call.options)
        return reader

    def options(self) -> dict[str, Any]:
        """Returns the options that were set before the last call, by name in lower case."""
        found: dict[str, Any] = {}
        for call in self.calls[:-1]:
            match call:
                case Call("option", (key, *value)):
                    found[str(key).casefold()] = value[0] if value else call.options.get("value")
                case Call("options"):
                    found |= {key.casefold(): value for key, value in call.options.items()}
                case Call("schema" | "name"):
                    found[call.method] = call.arguments
        return found

    def pins(self) -> bool:
        """Returns True if the calls show that a batch read is of a table whose version can be pinned."""
        last, formats = self.calls[-1], [call.arguments[0] for call in self.calls if call.method == "format" and call.arguments]
        given = last.options.get("format", formats[-1] if formats else "")
        return last.method in _BY_NAME or (last.method == "load" and str(given).casefold() == "delta")

    def name(self) -> str:
        """Returns the name of the read's input, from its table, folder or topic: ``source_events``."""
        last, options = self.calls[-1], self.options()
        given = [*last.arguments, *last.options.values(), *(options[place] for place in _PLACES if place in options)]
        first = given[0] if given else last.method
        text = str(first[0] if isinstance(first, list | tuple) and first else first)
        words = [word for word in _NOT_IN_NAMES.split(re.split(r"[/.]", text.rstrip("/*."))[-1]) if word]
        return "_".join(["source" if self.streaming else "static", *words])[:_NAME_LENGTH_MAX]

    def digest(self) -> str:
        """Returns a digest that distinguishes the read from others of the same name. It is the same in every process."""
        calls = [(call.method, [_text(each) for each in call.arguments], _text(call.options)) for call in self.calls]
        return sha256(repr((self.streaming, calls)).encode())[:8]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return repr(sorted((str(key), _text(each)) for key, each in value.items()))
    return value.json() if isinstance(value, StructType) else repr(value)


class ProjectSession:
    """The stand-in for the Spark session of a project, in all its files and flows.

    Args:
        settings: Settings in ``spark.conf`` before Spark starts. A flow finds the same in a stage.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.conf = ProjectConf(settings)

    @property
    def read(self) -> "ProjectReader":
        return ProjectReader(Read(False, ()))

    @property
    def readStream(self) -> "ProjectReader":
        return ProjectReader(Read(True, ()))

    def table(self, tableName: str) -> Any:
        return self.read.table(tableName)

    def sql(self, sqlQuery: str, *arguments: Any, **options: Any) -> Any:
        return _reads().sql(sqlQuery, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return _reads().attribute(name)


@dataclass(frozen=True)
class ProjectConf:
    """The stand-in for ``spark.conf``. A flow may read it, but not change it."""

    settings: Mapping[str, str] = field(repr=False)

    def get(self, key: str, *default: str | None) -> str | None:
        if key in self.settings:
            return self.settings[key]
        if key.startswith(SPARKS):
            found: str | None = _reads().attribute("conf").get(key, *default)
            return found
        if default:
            return default[0]
        raise LookupError(f"spark.conf has no {key!r}: add it to configuration in the project's specification")


class ProjectReader:
    """The stand-in for ``spark.read`` and ``spark.readStream``. It records the calls, up to the one that returns a frame."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*arguments: Any, **options: Any) -> Any:
            read = Read(self._read.streaming, (*self._read.calls, Call(method, arguments, options)))
            if method not in _GIVES_FRAME:
                return ProjectReader(read)
            frame = None
            if method in _BY_NAME:
                frame = _reads().dataset(str(arguments[0] if arguments else options["tableName"]), read)
            return _reads().outside(read) if frame is None else frame

        return call


@contextmanager
def answering(reads: Reads) -> Iterator[None]:
    """Lets ``reads`` answer the reads in this context."""
    token = _READS.set(reads)
    try:
        yield
    finally:
        _READS.reset(token)


@contextmanager
def found_as_active(session: ProjectSession) -> Iterator[None]:
    """Lets a project find the stand-in with ``SparkSession.active()``, ``getActiveSession()`` and ``builder.getOrCreate()``.

    PySpark also calls these for columns: it finds the real session, if any. ``F.broadcast`` accepts stand-ins for frames.
    """

    def standing_in(original: Any) -> Any:
        def find(owner: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller.partition(".")[0] != "pyspark":
                return session
            return (original.__get__(None, owner) if isinstance(owner, type) else original.__get__(owner))()

        return classmethod(find) if isinstance(original, classmethod) else find

    places: list[tuple[Any, str]] = [
        (SparkSession, "active"),
        (SparkSession, "getActiveSession"),
        (SparkSession.Builder, "getOrCreate"),
    ]
    kept = [(owner, name, owner.__dict__[name]) for owner, name in places]
    functions: list[tuple[Any, str, Any]] = [(module, "broadcast", module.broadcast) for module in (F, builtin)]
    for owner, name, original in kept:
        setattr(owner, name, standing_in(original))
    for module, name, _ in functions:
        setattr(module, name, _broadcast)
    try:
        yield
    finally:
        for owner, name, original in (*kept, *functions):
            setattr(owner, name, original)


def _broadcast(df: Any) -> Any:
    return df.hint("broadcast")
