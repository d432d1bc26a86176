"""Errors of Spark, Delta and users' code that have their own remedy, and whether another try may heal them."""

import builtins
import importlib
import re
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.errors.exceptions.base import PySparkAttributeError, PySparkTypeError, PySparkValueError

import spark_jobs
from spark_jobs.protocol.errors import (
    InterruptedRunError,
    InvalidPipelineError,
    PermanentFailureError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
    for_sources,
)
from spark_jobs.publication.delta_jvm import java_causes, java_class_names
from spark_jobs.runtime.spark.session import is_wrong_call, jvm_has_ended
from spark_jobs.storage.object_store_errors import access_denied, missing_bucket
from spark_jobs.storage.object_store_kinds import CANONICAL_SCHEMES
from spark_jobs.storage.os_errors import is_full, without_room

_CONDITION = re.compile(r"\[([A-Z_][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*)\]")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}\b.*", re.DOTALL)
_LASTING_STATE = re.compile(r"SQLSTATE: (?:21|22|42|0A)\w{3}\b")
"""Matches the classes of SQL states that blame the rows or the query. The same rows will fail in the same way again."""
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*\w+)(?::|$)")
_STACK_OR_PLAN = re.compile(
    r"^\s+at [\w.$/<>]+\(|^\s*\.\.\. \d+ (?:more|elided)|^(?:== |JVM stacktrace|Driver stacktrace|Caused by: )"
)
"""Matches a line of a Java stack, or one after which Spark prints a plan or a stack."""
_FULL = re.compile(r"No space left on device|Disk quota exceeded|quota of \S+ is exceeded")
"""Matches the messages of Linux, its quotas and HDFS if a file cannot grow, from Java, RocksDB or a Python worker."""
_PLACE = re.compile(rf"[`'\"]?({'|'.join(CANONICAL_SCHEMES)})(://[^`'\"]*?)[`'\"]?: ")
"""Matches the beginning of a message of Hadoop's clients of object stores: the place."""
_DENYING = "java.nio.file.AccessDeniedException"
_WITHOUT_BUCKET = "org.apache.hadoop.fs.s3a.UnknownStoreException"
_MESSAGE_MAX = 2_000
_PACKAGE = Path(spark_jobs.__file__).parent
_REFUSING = (AnalysisException, IllegalArgumentException, PySparkAttributeError, PySparkTypeError, PySparkValueError)
"""Exceptions that Spark raises for an invalid pipeline, with any condition."""
_HEALING = frozenset(
    {
        "java.io.IOException",
        "java.util.concurrent.TimeoutException",
        "java.lang.InterruptedException",
        "java.sql.SQLTransientException",
        "java.sql.SQLRecoverableException",
        "org.apache.kafka.common.errors.RetriableException",
    }
)
"""Java classes whose errors, with those of their subclasses, another try may heal."""
_LASTING = frozenset(
    {
        "java.io.FileNotFoundException",
        "java.nio.file.NoSuchFileException",
        "java.nio.file.AccessDeniedException",
        "org.apache.hadoop.security.AccessControlException",
    }
)
"""Java classes among them whose errors no try heals."""
_LASTING_IN_PYTHON = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Python exceptions that no try heals if the driver calls the function. In a batch another host may have the file."""
_ABORTED = "Job aborted"
"""The beginning of Spark's message for a job that has lost its executors, or whose tasks have failed for their own reason."""


@dataclass(frozen=True)
class KnownError:
    """An error with a remedy."""

    name: str
    """A condition of Spark or Delta, which includes its sub classes; the name of a Python exception; or words of a message without a
    condition."""
    remedy: str
    heals: bool = False
    """True if another try may succeed without a change of the pipeline or its data."""


ANOTHER_FILE = (
    "Write what is right into a file of another name, take this one out of the folder, and go on without it: --accept-data-loss SOURCE "
    "(accept_data_loss=). The next round reads the other file."
)
"""The remedy for an unreadable file. It needs another file name, because a changed file is refused."""
_FILE_NOT_EXIST = "FAILED_READ_FILE.FILE_NOT_EXIST"
AN_EVENT_TIME = "Give the stage's input an event time (event_time= on the source)."
NEWEST_VERSION = (
    "If a round has pinned the version of a static table, go on with the newest one: --new-source NAME (new_sources=)."
)
OWN_SCHEMA_LOG = (
    "Remove the option schemaTrackingLocation: the runtime gives each stream a schema log of its own. Columns may be renamed, dropped, "
    "added and widened without the option."
)
"""The remedy for a source that sets a place for Delta's schema log."""

KNOWN: tuple[KnownError, ...] = (
    KnownError(
        "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE",
        "Return the event time as a TIMESTAMP, such as with F.to_timestamp(column); for a TIMESTAMP_NTZ declare event_time_zone=.",
    ),
    KnownError("UNRESOLVED_COLUMN", "Correct the column's name; the message lists those that there are."),
    KnownError("UNRESOLVED_COLUMN_AMONG_FIELD_NAMES", "Correct the column's name; the message lists those that there are."),
    KnownError("FIELD_NOT_FOUND", "Correct the field's name; the message lists those that there are."),
    KnownError("AMBIGUOUS_REFERENCE", "Rename one of the columns before the join, or name it through its frame."),
    KnownError("AMBIGUOUS_REFERENCE_TO_FIELDS", "Give each field of the struct a name of its own."),
    KnownError("COLUMN_ALREADY_EXISTS", "Give each column of the result a name of its own."),
    KnownError("DATATYPE_MISMATCH", "Cast the column to the type that the message asks for."),
    KnownError("UNRESOLVED_ROUTINE", "Correct the function's name, or use a UDF through its Python name."),
    KnownError("PARSE_SYNTAX_ERROR", "Correct the SQL text or the type that the message quotes."),
    KnownError("UNSUPPORTED_DATATYPE", "Correct the name of the type."),
    KnownError("NUM_COLUMNS_MISMATCH", "Return the same columns from both sides of the union."),
    KnownError(
        "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION",
        "Give the stage's input an event time that is among its keys (event_time= on the source, or on the stage before where a function "
        'has lost it), or use a sink with mode="complete" or "upsert".',
    ),
    KnownError(
        "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING",
        "Use F.window or F.session_window, or a static input; row_number() has no end.",
    ),
    KnownError("UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK", AN_EVENT_TIME),
    KnownError("streaming DataFrames/DataSets without watermark", AN_EVENT_TIME),
    KnownError(
        "is not supported without a watermark",
        "Give the inputs of the join an event time (event_time= on the sources), and have it among the keys or in the condition.",
    ),
    KnownError(
        "Distinct aggregations are not supported",
        "Use approx_count_distinct(), or a stage before that leaves repetitions out (dropDuplicates).",
    ),
    KnownError("Sorting is not supported on streaming", "Leave the order out: a table has none."),
    KnownError("is not supported on streaming", "Leave out what Spark cannot do on a stream, or do it in a static input."),
    KnownError(
        "not supported when there are streaming",
        "Give the stage's input an event time that is among its keys (event_time= on the source).",
    ),
    KnownError(
        "Queries with streaming sources must be executed with",
        "Return the frame: a function that is given a stream cannot collect, show, count or write it.",
    ),
    KnownError("PATH_NOT_FOUND", "Correct the path, or write the files first."),
    KnownError("UNABLE_TO_INFER_SCHEMA", "Give the source a schema: spark.readStream.schema(...)."),
    KnownError(
        "Schema must be specified when creating a streaming source", "Give the source a schema: spark.readStream.schema(...)."
    ),
    KnownError("DATA_SOURCE_NOT_FOUND", "Correct the format's name, or add the package that has it: --packages."),
    KnownError(
        "TABLE_OR_VIEW_NOT_FOUND", "Correct the table's name, make it first, or give Spark the catalog that has it: --conf."
    ),
    KnownError("SCHEMA_NOT_FOUND", "Correct the schema's name, or give Spark the catalog that has it: --conf."),
    KnownError("DELTA_MISSING_DELTA_TABLE", "Correct the path, or write the Delta table first."),
    KnownError("DELTA_TABLE_NOT_FOUND", "Correct the path, or write the Delta table first."),
    KnownError("DELTA_PATH_DOES_NOT_EXIST", "Correct the path, or write the Delta table first."),
    KnownError("DELTA_SCHEMA_NOT_SET", "Correct the path, or write the Delta table first."),
    KnownError("DELTA_INVALID_FORMAT", "Read the path in the format that it has."),
    KnownError(
        "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION", "Run it with the Delta Lake that has written the checkpoint, or a newer one."
    ),
    KnownError("DELTA_STREAMING_SCHEMA_LOCATION_CONFLICT", OWN_SCHEMA_LOG),
    KnownError("DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT", OWN_SCHEMA_LOG),
    KnownError("DELTA_INVALID_V1_TABLE_CALL", 'Read the table with spark.readStream.format("delta").load(path).'),
    KnownError("DELTA_UNSUPPORTED_TIME_TRAVEL_VIEWS", "Remove the version from the stream; a static input may have one."),
    KnownError("DELTA_UNSUPPORTED_TIME_TRAVEL_MULTIPLE_FORMATS", "Give the version of the table in one way only."),
    KnownError(
        "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
        f"Raise the property delta.deletedFileRetentionDuration of the table, or read a newer version. {NEWEST_VERSION}",
    ),
    KnownError("DELTA_VERSION_NOT_FOUND", f"Read a version that the message names. {NEWEST_VERSION}"),
    KnownError("DIVIDE_BY_ZERO", "Use F.try_divide, or leave out the rows with a zero."),
    KnownError("CAST_INVALID_INPUT", "Use try_cast, or leave out the rows with that value."),
    KnownError("CAST_OVERFLOW", "Use a wider type, or try_cast."),
    KnownError("CAST_OVERFLOW_IN_TABLE_INSERT", "Use a wider type, or try_cast."),
    KnownError("ARITHMETIC_OVERFLOW", "Use a wider type, or try_add and its like."),
    KnownError("NUMERIC_VALUE_OUT_OF_RANGE", "Use a wider type, or try_cast."),
    KnownError("CANNOT_PARSE_TIMESTAMP", "Use F.try_to_timestamp, or leave out the rows with that value."),
    KnownError("INVALID_ARRAY_INDEX", "Use F.get, which returns null beyond the end."),
    KnownError("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "Use F.try_element_at, which returns null beyond the end."),
    KnownError(
        "MALFORMED_RECORD_IN_PARSING", f"Read the source with the option mode=PERMISSIVE. Or leave the file out. {ANOTHER_FILE}"
    ),
    KnownError("NOT_NULL_ASSERT_VIOLATION", "Leave out the rows with null, or let the column be nullable."),
    KnownError("USER_RAISED_EXCEPTION", "Correct the rows that the stage's own check has found, or the check."),
    KnownError(
        "ModuleNotFoundError", "Install the module where Spark's Python workers run, or put it next to the pipeline's file."
    ),
    KnownError("ImportError", "Correct the import; the module is there, and has no such name or cannot be loaded."),
    KnownError("NameError", "Correct the name in the function."),
    KnownError("UnboundLocalError", "Correct the name in the function."),
    KnownError("AttributeError", "Correct the function: the value has no such attribute. It may be None."),
    KnownError("TypeError", "Correct the function, or the types of its columns. A value may be None."),
    KnownError("ZeroDivisionError", "Let the function return None for a zero, or leave out those rows."),
    KnownError("KeyError", "Let the function handle a missing key, or add it."),
    KnownError("IndexError", "Let the function handle a value that is too short."),
    KnownError("UnicodeDecodeError", "Decode the value as what it is, or leave out those rows."),
    KnownError(
        "OSError",
        "Bring back what the function reaches, or correct its path: a file, a disk, a service or a network. Then the run goes on.",
        heals=True,
    ),
    KnownError(
        "MemoryError", "Give the Python workers more memory: spark.executor.pyspark.memory, or fewer rows a batch.", heals=True
    ),
    KnownError("OperationalError", "Bring back the database that the function reaches. The run goes on when it is.", heals=True),
    KnownError(
        _FILE_NOT_EXIST,
        "Bring the file back. If it is a source's and gone for good, go on without it: --accept-data-loss SOURCE "
        "(accept_data_loss=).",
        heals=True,
    ),
    KnownError(
        "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH", f"The file has another type than the schema. {ANOTHER_FILE}"
    ),
    KnownError(
        "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER", f"The file is not of the source's format, or is cut off. {ANOTHER_FILE}"
    ),
    KnownError(
        "KAFKA_DATA_LOSS",
        "Bring back the topic, or the records. If they are gone for good, or are read no more, go on without them: --accept-data-loss "
        "SOURCE (accept_data_loss=).",
        heals=True,
    ),
    KnownError(
        "FAILED_READ_FILE.UNSUPPORTED_FILE_SYSTEM",
        "Use a file system that has the method in the message, such as with another scheme in the path.",
    ),
    KnownError("FAILED_READ_FILE", "Bring the file back, or make it readable; the run goes on when it is.", heals=True),
)
"""All errors that the documentation lists; see :func:`find`."""
_BY_NAME = {known.name: known for known in KNOWN}
_PLACEHOLDER = re.compile(r"(--[a-z-]+) SOURCE\b")


def find(error: BaseException) -> KnownError | None:
    """Returns the entry of the innermost error, or None."""
    return _find(error)[0]


def says(error: Exception, condition: str) -> bool:
    """Returns True if an error has a condition of Spark or Delta among its causes."""
    return any(condition in _CONDITION.findall(str(cause.getMessage() or "")) for cause in _causes(error))


def summary(error: BaseException) -> str:
    """Returns the message of an error, in one line if possible, without Spark's plan and the stacks of Java and Python."""
    known, text = _find(error)
    if not _from_spark(error):
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    if is_wrong_call(error):
        return next((line for line in _lines(text) if "Exception: " in line), text).partition(": ")[2]
    if known is not None or isinstance(error, _REFUSING):
        lines = _lines(text) or [type(error).__name__]
        naming = [line for line in lines if _CONDITION.search(line)]
        return _SQLSTATE.sub("", lines[-1] if _python_errors(text) else (naming or lines)[0]).strip()
    text = without_stack(text)
    if len(text) > _MESSAGE_MAX:  # a Python traceback says what happened in its last line
        return f"... {text[-_MESSAGE_MAX:].partition(' ')[2]}"  # no partial word, because it might be a part of a secret
    return text


def last_line(text: str) -> str:
    """Returns the last line of a message. A Python traceback says there what happened."""
    return next(reversed(_lines(text)), "")


def without_stack(text: str) -> str:
    """Returns a message without Java's stacks and Spark's plans. A Python traceback stays, because its last line is the error."""
    kept: list[str] = []
    for line in text.strip().splitlines():
        if _STACK_OR_PLAN.search(line) and kept:
            break
        kept.append(line)
    return "\n".join(kept).strip()


def heals(error: BaseException) -> bool | None:
    """Returns True if another try may succeed without a change of the pipeline or its data; None if this is unknown.

    An error heals if a service, a disk, or Java itself could not be reached. An exception of the user's function does not heal, unless it
    is an :class:`OSError`. An error whose SQL state blames the rows or the query does not heal.
    """
    if jvm_has_ended(error):
        return True
    known = find(error)
    if known is not None:
        return known.heals
    if _from_spark(error):
        if any(_python_errors(text) or _LASTING_STATE.search(text) for text in messages(error)):
            return False
        return True if any(_heals_in_java(cause) for cause in _causes(error)) else None
    behind = error.__cause__ or error.__context__
    return heals(behind) if behind is not None else None


def full(failed: str, error: BaseException, places: Iterable[str], **texts: str) -> StorageFullError | None:
    """Returns the error to raise if no space, or no quota, is left; None if an error, and those behind it, do not say so.

    Args:
        failed: What failed, without the reason.
        error: The reason.
        places: Where it may have written. Spark does not say where it could not.
        texts: ``exists`` and ``safe`` of the error.
    """
    found = next((match[0] for text in messages(error) if (match := _FULL.search(text))), None)
    if found is None and not is_full(error):
        return None
    file = getattr(error, "filename", None)
    paths = [str(file)] if file else [*places, tempfile.gettempdir()]
    where = paths if file else without_room(paths)
    named = where or [*paths, "what spark.local.dir names"]
    return StorageFullError(
        f"{failed}: {found or 'No space left on device'}.",
        remedy=f"Free space, or raise the quota, for {_any_of(named)}. Then run it again: it continues from there.",
        path=named[0],
        **texts,
    )


def _closed_place(who: str, error: Exception) -> StorageError | None:
    """Returns the error to raise if a bucket denies access to Spark's client or does not exist; None if an error does not say so."""
    for cause in _causes(error):
        names, place = java_class_names(cause), _PLACE.match(str(cause.getMessage() or ""))
        url = f"{CANONICAL_SCHEMES[place[1]]}{place[2]}" if place else ""
        if url and _DENYING in names:
            return access_denied(url, f"{who}.")
        if url and _WITHOUT_BUCKET in names:
            return missing_bucket(url)
    return None


def _any_of(names: Sequence[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} or {last}" if others else last


def is_about_a_file(error: BaseException) -> bool:
    """Returns True if an error says that a file could not be read."""
    return "FAILED_READ_FILE" in str(error) or "FileNotFoundException" in str(error)


def may_heal(error: BaseException) -> bool:
    """Returns True if a repeated call of a function, or a repeated analysis, may succeed with the same arguments."""
    return not isinstance(error, _LASTING_IN_PYTHON) and bool(heals(error))


def _heals_in_java(cause: Any) -> bool:
    names = java_class_names(cause)
    return bool(names & _HEALING and not names & _LASTING) or str(cause.getMessage() or "").startswith(_ABORTED)


def _find(error: BaseException) -> tuple[KnownError | None, str]:
    """Returns the entry and the text that names it; without an entry, the innermost text."""
    if not _from_spark(error):
        return _by_exception(each.__name__ for each in type(error).__mro__), str(error).strip()
    texts = messages(error)
    for text in texts:
        raised = [entry for name in _python_errors(text) if (entry := _by_exception(_names_of(name)))]
        known = next((entry for entry in raised if entry.heals), raised[0] if raised else None)
        known = known or next(filter(None, map(_by_condition, _CONDITION.findall(text))), None)
        known = known or next((each for each in KNOWN if " " in each.name and each.name in text), None)
        if known is not None:
            return known, text.strip()
    return None, texts[0].strip()


def messages(error: BaseException) -> list[str]:
    """Returns the messages of a Spark error and its causes, the innermost first."""
    return [str(cause.getMessage() or cause.toString()) for cause in reversed(_causes(error))] or [str(error)]


def _by_exception(names: Iterable[str]) -> KnownError | None:
    """Returns the entry of a Python exception, by its class names from its class up."""
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def _names_of(exception: str) -> list[str]:
    """Returns the class names of an exception from its class up, if this process has its module."""
    module, _, name = exception.rpartition(".")
    kind = getattr(builtins, name, None)
    with suppress(Exception, SystemExit):  # a module may raise anything when it is imported
        kind = getattr(importlib.import_module(module), name) if module else kind
    return [each.__name__ for each in kind.__mro__] if isinstance(kind, type) else [name]


def _by_condition(condition: str) -> KnownError | None:
    """Returns the entry of a condition, or of the class of a sub class."""
    return _BY_NAME.get(condition) or _BY_NAME.get(condition.partition(".")[0])


@contextmanager
def refusing(who: str, remedy: str, safe: str, also: str = "", *, calls: bool = True, **evidence: Any) -> Iterator[None]:
    """Translates failures of a pipeline's function, or of its analysis, into errors of the tree, before anything is staged.

    Args:
        who: The called part with its verb: ``Stage 'x' cannot be analysed``.
        remedy: Remedy for an error without its own.
        safe: What is safe.
        also: Text after any remedy.
        calls: True if only the user's code or its analysis is called. Otherwise an unknown error that is not one of Spark's refusals is
            not translated, because it may come from other code.
        evidence: Ids for the error.

    Raises:
        InvalidPipelineError: Another try would fail in the same way.
        InterruptedRunError: Another try may succeed.
        AccessDeniedError: An object store denies access to Spark's client.
        NotFoundError: An object store has no such bucket.
        StorageFullError: No space, or no quota, is left.
    """
    try:
        yield
    except StreamPipelineError:
        raise
    except Exception as error:
        if closed := _closed_place(who, error):
            raise closed from None
        if no_room := full(who, error, (), safe=safe):
            raise no_room from error
        known, again = find(error), may_heal(error)
        refused = known is not None or isinstance(error, _REFUSING) or is_wrong_call(error)
        if jvm_has_ended(error) or not (refused or calls):
            raise
        where = _line_of_the_user(error)
        at = f" (line {where['line']} of {where['file']})" if where else ""
        if known is None and again:
            remedy = "Make the missing service or file available, then run it again."
        raise (InterruptedRunError if again else InvalidPipelineError)(
            f"{who}: {summary(error).rstrip('.')}{at}.",
            safe=safe,
            remedy=f"{known.remedy if known else remedy} {also}".strip(),
            **(evidence | where),
        ) from error


def failed_batch(
    failed: str,
    error: Exception,
    *,
    exists: str,
    safe: str,
    remedy: str,
    sources: Iterable[str],
    statics: Iterable[str] = (),
    places: Iterable[str] = (),
    **evidence: Any,
) -> InterruptedRunError | StorageFullError:
    """Returns the error for a failed batch: a permanent failure if no other try can heal it.

    Args:
        failed: What failed, without the reason.
        error: The reason.
        exists: What exists.
        safe: What is safe.
        remedy: Remedy for an error without its own.
        sources: Sources that the batch may have read.
        statics: Static inputs that it may have read.
        places: Places where the batch writes.
        evidence: Ids for the error.
    """
    if no_room := full(failed, error, places, exists=exists, safe=safe):
        return no_room
    known, kind = find(error), PermanentFailureError if heals(error) is False else InterruptedRunError
    if known is None:
        return kind(f"{failed}: {summary(error)}", exists=exists, safe=safe, remedy=remedy, **evidence)
    names = list(sources)
    own = _PLACEHOLDER.sub(lambda option: for_sources(option[1], names), known.remedy)
    if known.name == _FILE_NOT_EXIST and (read := list(statics)):
        own += f" If it is a static table's, go on with its newest version: {for_sources('--new-source', read)} (new_sources=)."
    again = f"{own} Then run it again: it goes on after the last staged batch."
    return kind(f"{failed}: {summary(error).rstrip('.')}.", exists=exists, safe=safe, remedy=again, **evidence)


def _causes(error: BaseException) -> list[Any]:
    return java_causes(error) if isinstance(error, Exception) else []


def _from_spark(error: BaseException) -> bool:
    return isinstance(error, PySparkException) or is_wrong_call(error) or bool(_causes(error))


def _python_errors(text: str) -> list[str]:
    """Returns the exception names in a Python traceback, with their modules, the last one first.

    A message may have other lines, such as ``HINT: ...``, which are not exceptions.
    """
    if "Traceback (most recent call last)" not in text:
        return []
    found = [match[1] for line in text.splitlines() if (match := _PYTHON_ERROR.match(line))]
    return [name for name in reversed(found) if _is_exception(name)]


def _is_exception(name: str) -> bool:
    module, _, last = name.rpartition(".")
    kind = getattr(builtins, name, None)
    is_builtin = isinstance(kind, type) and issubclass(kind, BaseException)
    return is_builtin or last.endswith(("Error", "Exception")) or (bool(module) and last[0].isupper())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE:")]


def _line_of_the_user(error: Exception) -> dict[str, Any]:
    """Returns the file and the line of the user's function, or nothing if it was not called."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_the_user(frame.filename)]
    return {"file": own[-1].filename, "line": own[-1].lineno} if own else {}


def _is_of_the_user(file: str) -> bool:
    return "site-packages" not in file and not Path(file).is_relative_to(_PACKAGE)
