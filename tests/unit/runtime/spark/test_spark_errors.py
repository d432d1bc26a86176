"""The errors that a retry may heal, and Spark's error messages without stack traces."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException

from spark_jobs.protocol.errors import InterruptedRunError, InvalidPipelineError, PermanentFailureError, StorageFullError
from spark_jobs.runtime.spark.spark_errors import failed_batch, find, heals, last_line, may_heal, refusing, without_stack


class Unheard(Exception):
    pass


def caused_by(cause: Exception) -> Exception:
    error = Unheard("of a client")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no server"),
        TimeoutError("too slow"),
        OSError("no route"),
        caused_by(ConnectionResetError("gone")),
        caused_by(caused_by(TimeoutError("too slow"))),
        Py4JNetworkError("Answer from Java side is empty"),
    ],
)
def test_an_error_of_an_unreachable_service_may_heal(error: Exception) -> None:
    assert may_heal(error)


@pytest.mark.parametrize(
    "error",
    [
        Unheard("of nobody"),
        ValueError("not a number"),
        RuntimeError("it is so"),
        FileNotFoundError("/no/such/file"),
        PermissionError("/not/yours"),
        caused_by(ValueError("not a number")),
        ModuleNotFoundError("No module named 'x'"),
        ZeroDivisionError("division by zero"),
    ],
)
def test_an_error_that_a_function_would_raise_again_cannot_heal(error: Exception) -> None:
    assert not may_heal(error)


def test_an_exception_is_found_by_its_base_classes() -> None:
    found = find(ConnectionRefusedError("no server"))
    assert found is not None
    assert found.name == "OSError"
    text = 'Traceback (most recent call last):\n  File "udf.py", line 1, in <module>\nBrokenPipeError: [Errno 32] Broken pipe'
    assert isinstance(
        failed_batch("It failed", _from_java(text), exists="", safe="", remedy="r", sources=["flights"]), InterruptedRunError
    )


class JavaClass:
    """A Java class without a superclass."""

    def getName(self) -> str:
        return "org.apache.spark.SparkException"

    def getSuperclass(self) -> None:
        return None


def _from_java(text: str) -> Exception:
    """Creates an error that the JVM has raised with this message."""

    class Java:
        def getMessage(self) -> str:
            return text

        def getClass(self) -> "JavaClass":
            return JavaClass()

        def getCause(self) -> None:
            return None

    error = Unheard("in Java")
    error.java_exception = Java()  # type: ignore[attr-defined]
    return error


FULL = [
    "java.io.IOException: No space left on device",
    "Task failed while writing rows to file:/w/t. [TASK_WRITE_FAILED] SQLSTATE: 58030 No space left on device",
    "IO error: No space left on device: While appending to file: /tmp/spark/state.sst",
    "The DiskSpace quota of /user/ann is exceeded: quota = 1 GB",
    'Traceback (most recent call last):\n  File "udf.py", line 1, in <module>\nOSError: [Errno 28] No space left on device',
]


@pytest.mark.parametrize("text", FULL)
def test_the_error_of_a_batch_without_disk_space_names_the_places_that_it_writes(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = failed_batch(
        "It failed", _from_java(text), exists="", safe="", remedy="r", sources=[], places=["s3://lake/t", "/w/t"]
    )
    assert isinstance(found, StorageFullError)
    assert found.evidence["path"] == "s3://lake/t"
    assert "s3://lake/t, /w/t, " in found.remedy
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_bavail=int(path != str(tmp_path)), f_frsize=1 << 30, f_files=0)
    )
    found = failed_batch(
        "It failed", _from_java(text), exists="", safe="", remedy="r", sources=[], places=["/w/t", f"file://{tmp_path}"]
    )
    assert found.evidence["path"] == str(tmp_path)
    assert f"for {tmp_path}. Then" in found.remedy


def test_a_full_disk_in_a_function_is_an_error_that_may_heal() -> None:
    with pytest.raises(StorageFullError) as told, refusing("It failed", "r", "s"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work/cache.db")
    assert told.value.evidence["path"] == "/work/cache.db"
    assert told.value.failed == "It failed: No space left on device."


def test_a_division_by_zero_in_a_worker_is_not_retried() -> None:
    text = 'Traceback (most recent call last):\n  File "udf.py", line 1, in <module>\nZeroDivisionError: division by zero'
    found = failed_batch("It failed", _from_java(text), exists="", safe="", remedy="r", sources=["flights"])
    assert isinstance(found, PermanentFailureError)
    assert found.failed == "It failed: ZeroDivisionError: division by zero."


TRACEBACK = 'Traceback (most recent call last):\n  File "udf.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACEBACK}ValueError: not a number",
        f"{TRACEBACK}AssertionError",
        f"{TRACEBACK}pyarrow.lib.ArrowInvalid: Could not convert 'x'",
        f"{TRACEBACK}orders.NoSuchModuleHere: no",
        f"Job aborted due to stage failure: {TRACEBACK}ValueError: not a number",
        "[DATETIME_OVERFLOW.MAKE] Out of range. SQLSTATE: 22008",
        "[CAST_OVERFLOW_IN_TABLE_INSERT] Fail. SQLSTATE: 22003",
        "[CANNOT_PARSE_DECIMAL] Cannot parse decimal. SQLSTATE: 22018",
        "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000",
        "[UNHEARD_OF] Not supported. SQLSTATE: 0A000",
        "[UNHEARD_OF] No such column. SQLSTATE: 42703",
        "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Data type mismatches. SQLSTATE: KD001",
        "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Could not read footer. SQLSTATE: KD001",
    ],
)
def test_a_batch_that_fails_because_of_its_rows_or_its_code_is_not_retried(text: str) -> None:
    assert heals(_from_java(text)) is False
    assert isinstance(
        failed_batch("It failed", _from_java(text), exists="", safe="", remedy="r", sources=["flights"]), PermanentFailureError
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACEBACK}TimeoutError: too slow",
        f"{TRACEBACK}MemoryError",
        f"{TRACEBACK}sqlite3.OperationalError: database is locked\nHINT: wait\nlock.held: yes",
        f"{TRACEBACK}ConnectionRefusedError: no\n\nThe above exception was the cause:\n\n{TRACEBACK}no_such_client.Failed: no",
        f"{TRACEBACK}http.client.RemoteDisconnected: Remote end closed connection",
        f"{TRACEBACK}no_such_client.errors.ConnectionError: gone",
        "Job aborted due to stage failure: executor lost",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file. SQLSTATE: KD001",
        "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions were deleted. SQLSTATE: 22000",
        "[UNHEARD_OF] The cluster is away. SQLSTATE: 08000",
    ],
)
def test_a_batch_that_could_not_reach_a_service_is_retried(text: str) -> None:
    assert heals(_from_java(text)) is not False
    found = failed_batch("It failed", _from_java(text), exists="", safe="", remedy="r", sources=["flights"])
    assert not isinstance(found, PermanentFailureError)


@pytest.mark.parametrize(
    ("sources", "option"),
    [
        (["flights"], "--accept-data-loss flights (accept_data_loss=)."),
        (["trains", "flights"], "--accept-data-loss flights or --accept-data-loss trains (accept_data_loss=)."),
        ([], "--accept-data-loss SOURCE (accept_data_loss=)."),
    ],
)
def test_the_remedy_of_a_failed_batch_names_the_sources_that_it_may_have_read(sources: list[str], option: str) -> None:
    lost = _from_java("[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions were deleted. SQLSTATE: 22000")
    assert option in failed_batch("It failed", lost, exists="", safe="", remedy="r", sources=sources).remedy


def test_a_message_is_shown_without_java_stack_and_spark_plan() -> None:
    text = "[SOME.CONDITION] It is wrong.\n== Physical Plan ==\n+- Project\n"
    assert without_stack(text) == "[SOME.CONDITION] It is wrong."
    assert without_stack("java.lang.Boom: no\n\tat a.b.C(D.java:1)\nCaused by: x\n\tat e.f") == "java.lang.Boom: no"
    python = 'Traceback (most recent call last):\n  File "f.py", line 1\nValueError: no'
    assert without_stack(python) == python


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Batch 2 failed: Traceback (most recent call last):\n  File\nValueError: seven\n\nSQLSTATE: 38000", "ValueError: seven"),
        ("Batch 2 failed.", "Batch 2 failed."),
        ("", ""),
    ],
)
def test_the_last_line_of_a_message_says_what_happened(text: str, line: str) -> None:
    assert last_line(text) == line


def test_an_error_outside_of_user_code_goes_through() -> None:
    with pytest.raises(Unheard), refusing("Stage 'x' cannot be started", "Change it.", "", calls=False):
        raise Unheard("of nobody")
    with (
        pytest.raises(InvalidPipelineError, match="Stage 'x' cannot be analysed: Unheard: of nobody"),
        refusing("Stage 'x' cannot be analysed", "Change it.", "Nothing was staged."),
    ):
        raise Unheard("of nobody")


@pytest.mark.parametrize(
    ("condition", "entry"),
    [
        ("FAILED_READ_FILE", "FAILED_READ_FILE"),
        ("FAILED_READ_FILE.NO_HINT", "FAILED_READ_FILE"),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "FAILED_READ_FILE.FILE_NOT_EXIST"),
        ("UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK", "UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK"),
        ("DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION", "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION"),
        ("DELTA_INVALID_FORMAT_OF_ANOTHER_KIND", None),
        ("USER_RAISED_EXCEPTION_UNKNOWN_ERROR_CLASS", None),
    ],
)
def test_an_entry_applies_to_its_condition_and_the_subclasses_of_the_condition(condition: str, entry: str | None) -> None:
    found = find(AnalysisException(f"[{condition}] It is so. SQLSTATE: 42000"))
    assert (found.name if found else None) == entry
