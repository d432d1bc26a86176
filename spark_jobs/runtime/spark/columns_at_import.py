"""Lets a pipeline file create columns, windows, schemas and UDFs at module level, where no Spark session exists yet.

PySpark creates a column by calling the JVM. There is none while a pipeline file is imported: settings of the session are in that file, and
``spark-jobs validate --no-spark`` needs no Java. So the calls are recorded, and made when a stage uses the column.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from py4j.java_gateway import JavaObject, is_magic_member
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import DataType, StructType
from pyspark.sql.udf import UserDefinedFunction

from spark_jobs.api.user_module import SessionAtImportError

_SESSION_CLASS = "org.apache.spark.sql.classic.SparkSession"
_context: Any = SparkContext
_session: Any = SparkSession
_udf: Any = UserDefinedFunction
_TEXTS = ("col", "column", "expr")
"""The functions that create a column from a text."""


@contextmanager
def columns_without_session() -> Iterator[set[str]]:
    """Records columns and related objects while the context is open. Does nothing if a Spark context exists.

    Yields:
        The names of the modules that have created such objects at module level. Spark's Python workers, which have no session either,
        could not import them.
    """
    if _context._active_spark_context is not None:
        yield set()
        return
    recorder = _Recorder()
    call, return_type, session = _udf.__call__, _udf.returnType, _session.__dict__["_getActiveSessionOrCreate"]
    _context._active_spark_context = recorder
    _session._getActiveSessionOrCreate = staticmethod(lambda: _SessionLater(session))
    _udf.__call__ = lambda self, *columns, **named: Column(
        _later(lambda: call(self, *columns, **named)._jc, "", (*columns, *named.values()))
    )
    _udf.returnType = property(lambda self: recorder.text_or_type(self._returnType))
    try:
        yield recorder.modules
    finally:
        _context._active_spark_context = None
        _udf.__call__, _udf.returnType, _session._getActiveSessionOrCreate = call, return_type, session


def send_whole(modules: Iterable[ModuleType]) -> None:
    """Lets functions of these modules be sent to Python workers by value, so that a worker need not import the modules."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class _Recorder:
    """Replaces the Spark context while a file is imported. Everything but creating columns needs a session, and is refused."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def _note(self) -> None:
        """Records the modules that are being imported."""
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_name == "<module>":
                self.modules.add(str(frame.f_globals.get("__name__")))
            frame = frame.f_back

    @property
    def _jvm(self) -> "_Names":
        self._note()
        return _Names(())

    def _parse_ddl(self, text: str) -> "_LaterSchema":
        self._note()
        return _LaterSchema(text)

    def text_or_type(self, given: DataType | str) -> DataType | str:
        """Returns the declared type of a UDF unchanged. PySpark parses a text again when it needs the type."""
        if isinstance(given, str):
            self._note()
        return given

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionAtImportError(name)


class _Names:
    """A package, a class or a method of the JVM that does not exist yet."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if is_magic_member(name):
            raise AttributeError(name)
        return _NoSession() if name == _SESSION_CLASS else _Names((*self._path, name))

    def __call__(self, *arguments: Any) -> "_LaterObject":
        return _later(lambda: self._found()(*arguments), self._path[-1], arguments)

    def _found(self) -> Any:
        found = _context._active_spark_context._jvm
        for name in self._path:
            found = getattr(found, name)
        return found


class _NoSession:
    """The JVM's answer for its active session while there is none."""

    def getActiveSession(self) -> "_NoSession":
        return self

    def isDefined(self) -> bool:
        return False


class _SessionLater:
    """The session for columns that need one: a cast to a type that is not written as a text."""

    def __init__(self, find: Any) -> None:
        self._find = find

    @property
    def _jsparkSession(self) -> "_SessionLater":
        return self

    def parseDataType(self, text: str) -> "_LaterObject":
        return _later(
            lambda: self._find.__get__(None, SparkSession)()._jsparkSession.parseDataType(text), "parseDataType", (text,)
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionAtImportError(name)


class _LaterObject(JavaObject):  # type: ignore[misc]
    """An object of the JVM that is created when it is first used."""

    def __init__(self, make: Callable[[], Any], called: str, arguments: tuple[Any, ...]) -> None:
        self._make = make
        self.called = called
        """The function or the method that creates it; empty if it has no name."""
        self.arguments = arguments
        """Its arguments. The first one of a method is the object that has it."""
        self._made: tuple[Any, Any] | None = None
        """The object and its context."""

    @property
    def written(self) -> str | None:
        """Returns the text of the column, if it was given as one: a name, or an expression in SQL."""
        text = self.arguments[0] if self.called in _TEXTS and len(self.arguments) == 1 else None
        return text if isinstance(text, str) else None

    def __getattr__(self, name: str) -> Any:
        if is_magic_member(name) or name == "Java":
            raise AttributeError(name)
        if isinstance(_context._active_spark_context, _Recorder):
            return lambda *arguments: _later(lambda: getattr(self._object(), name)(*arguments), name, (self, *arguments))
        return getattr(self._object(), name)

    @property
    def _target_id(self) -> Any:
        return self._object()._target_id

    @property
    def _gateway_client(self) -> Any:
        return self._object()._gateway_client

    def _object(self) -> Any:
        context = _context._active_spark_context
        if context is None or isinstance(context, _Recorder):
            raise PySparkRuntimeError(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})
        if self._made is None or self._made[0] is not context:
            self._made = context, self._make()
        return self._made[1]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        try:
            return str(self._object())
        except PySparkRuntimeError:
            return "a column that Spark has not made yet"

    __repr__ = toString = __str__


def _later(make: Callable[[], Any], called: str, arguments: tuple[Any, ...]) -> _LaterObject:
    return _LaterObject(make, called, arguments)


class _LaterSchema(StructType):
    """The schema of a text, parsed when it is first used."""

    def __init__(self, text: str) -> None:
        self._text = text

    def json(self) -> str:
        """Returns the text itself while there is no session. Everything that accepts a schema as JSON also accepts DDL."""
        return self._text if isinstance(_context._active_spark_context, _Recorder) else super().json()

    def __getattr__(self, name: str) -> Any:
        if name not in ("fields", "names", "_needConversion", "_needSerializeAnyField"):
            raise AttributeError(name)
        if isinstance(_context._active_spark_context, _Recorder):
            raise SessionAtImportError(f"the fields of {self._text!r}")
        parsed = _context._active_spark_context._parse_ddl(self._text)
        if not isinstance(parsed, StructType):
            raise TypeError(f"{self._text!r} declares {parsed.simpleString()}, and a schema was expected.")
        self.__dict__.update(parsed.__dict__)
        self.__class__ = StructType  # type: ignore[assignment]
        return self.__dict__[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return StructType, (self.fields,)


def is_recorded(column: Any) -> bool:
    """Returns True if no session existed when the column was created."""
    return isinstance(getattr(column, "_jc", None), _LaterObject)


def written_text(column: Any) -> str | None:
    """Returns the text with which ``F.col`` or ``F.expr`` was called; None for other columns."""
    java = getattr(column, "_jc", None)
    if isinstance(java, _LaterObject):
        return java.written
    if not isinstance(java, JavaObject):
        return None
    node = java.node()  # the process has a session, such as that of a notebook
    return str(node.sql()) if node.getClass().getSimpleName() in ("UnresolvedAttribute", "SqlExpression") else None


UNKNOWN = "…"
"""Stands in :func:`readable_text` for a part of a column that has no text, such as a function of the user's."""


def readable_text(column: Any) -> str:
    """Returns a column as a text for comparisons, such as ``struct(at, id)``. Spark could not parse it."""
    found = getattr(column, "_jc", None) if isinstance(column, Column) else column
    if isinstance(found, _LaterObject):
        if found.written is not None:
            return found.written
        parts = ", ".join(map(readable_text, found.arguments))
        return parts if found.called == "toSeq" else f"{found.called or UNKNOWN}({parts})"
    if isinstance(found, list | tuple):
        return ", ".join(map(readable_text, found))
    if isinstance(found, JavaObject):
        distinct = isinstance(column, Column) and _has_distinct(found.node())
        return f"{found.toString()}{' (DISTINCT)' if distinct else ''}"  # Spark's text leaves the word out
    return repr(found) if isinstance(found, str | int | float | bool | None) else UNKNOWN


def _has_distinct(node: Any) -> bool:
    """Returns True if a column of a session has an aggregate of distinct values."""
    if node.getClass().getSimpleName() == "UnresolvedFunction" and node.isDistinct():
        return True
    parts = node.children()
    return any(_has_distinct(parts.apply(index)) for index in range(parts.size()))
