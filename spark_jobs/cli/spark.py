"""Starts Spark for a command, and redirects the output of Spark and Ivy."""

import atexit
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import POLLIN, poll
from tempfile import TemporaryFile, mkdtemp
from typing import IO, TYPE_CHECKING, Any, TextIO

from spark_jobs.api.neighbours import Neighbours
from spark_jobs.api.parameters import environment_mask
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.refusals import Place
from spark_jobs.api.settings import check_settings
from spark_jobs.cli.options import pairs, words
from spark_jobs.cli.terminal import VisibleFormatter, standing
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError, missing_package
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.protocol.spark_settings import conf_of_environment
from spark_jobs.storage.os_errors import translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.cli.progress import Progress

_TAIL_LINES = 15
_LAST_LINES_S = 5.0
_CHUNK_BYTES = 64 << 10
_LOGGED_AND_RAISED = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_GATEWAY = ("java_gateway", "clientserver")
_CATALOG, _FORGETS = "spark.sql.catalogImplementation", "in-memory"


@dataclass(frozen=True)
class SparkOptions:
    """The options to start Spark with."""

    conf: Mapping[str, str]
    packages: Sequence[str] = ()
    jars: Sequence[str] = ()
    py_files: Sequence[str] = ()
    driver_memory: str | None = None

    def check_submitted(self) -> None:
        """Refuses options that a running JVM cannot use any more.

        Raises:
            InvalidParameterError: An option belongs to ``spark-submit``.
        """
        given = {
            "--packages": self.packages,
            "--jars": self.jars,
            "--py-files": self.py_files,
            "--driver-memory": self.driver_memory,
        }
        late = [name for name, value in given.items() if value]
        if late:
            raise InvalidParameterError(
                f"{', '.join(late)} cannot be set any more: spark-submit has started Spark already.",
                remedy="Give it to spark-submit as an option, before the file's name.",
                options=late,
            )


def spark_options(pipeline: Pipeline, given: Mapping[str, Any]) -> SparkOptions:
    """Returns the options to start Spark with. The command line overrides the pipeline.

    Args:
        pipeline: The pipeline.
        given: The command's parameters.

    Raises:
        InvalidParameterError: An option has no value.
        InvalidPipelineError: A setting is fixed.
    """
    place = Place(pipeline.name, "option", "--conf")
    conf = dict(pipeline.conf) | given_settings(place, given["conf"])
    packages, jars, py_files = (words(given[name]) for name in ("packages", "jars", "py_files"))
    return SparkOptions(conf, packages, jars, py_files, given["driver_memory"])


def given_settings(place: Place, conf: Sequence[str] | None) -> dict[str, str]:
    """Returns the settings of ``--conf`` and of the environment.

    Raises:
        InvalidParameterError: A setting has no value.
        InvalidPipelineError: A setting is fixed.
    """
    return dict(check_settings(place, settings_asked(conf)))


def settings_asked(conf: Sequence[str] | None) -> dict[str, str]:
    """Returns the settings that :func:`given_settings` checks.

    Raises:
        InvalidParameterError: A setting has no value.
    """
    return conf_of_environment(os.environ) | pairs("--conf", conf)


@contextmanager
def needing_spark(what: str, instead: str = "") -> Iterator[None]:
    """Raises an error that says what to install if a command needs Spark and it is missing.

    Args:
        what: The activity that needs Spark.
        instead: The remedy without Spark.

    Raises:
        MissingRequirementError: Java or a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(what, error.name, "spark", instead) from error
    except MissingRequirementError as error:
        remedy = f"{error.remedy} {instead}".strip()
        raise MissingRequirementError(
            error.failed, exists=error.exists, safe=error.safe, remedy=remedy, **error.evidence
        ) from error


class OutputFile:
    """A file for the output of processes.

    A file without a path has no name in any directory until :meth:`keep` gives it one. If this process is killed before that, nothing is
    left behind.

    Args:
        path: The path, whose earlier file gets the suffix ``.1``; or None.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._pipe: int | None = None
        self._lock = threading.RLock()

    def open(self) -> int:
        """Opens the file. Returns its descriptor.

        Raises:
            StorageError: The file cannot be opened.
        """
        with self._lock, TemporaryFile() if self.path is None else _opened(self.path) as file:
            self._descriptor = os.dup(file.fileno())
            return self._descriptor

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def write(self, line: bytes) -> None:
        with self._lock:
            while line and self._descriptor is not None:
                line = line[os.write(self._descriptor, line) :]

    def keep(self, path: Path) -> None:
        """Copies a file without a path to ``path``. Later lines are written there, too.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._lock:
            if self._descriptor is None or self.path is not None:
                return
            with translated(str(path)), _opened(path) as file:
                file.write(self._content(self._descriptor))
                file.flush()
                os.dup2(file.fileno(), self._descriptor)
            self.path = path

    def copy(self, pipe: int, mask: Mask) -> threading.Thread:
        """Copies lines from the reading end of a pipe until its last writer is gone, then closes it. Returns the thread that does so."""
        self._pipe = pipe
        copier = threading.Thread(target=self._copy, args=(pipe, mask), name="masked-log", daemon=True)
        copier.start()
        return copier

    def _copy(self, pipe: int, mask: Mask) -> None:
        chunk, rest = b"begun", b""
        try:
            while chunk:
                _has_lines(pipe, None)
                with self._lock:  # whoever has the lock finds each line in the pipe or in the file
                    chunk = os.read(pipe, _CHUNK_BYTES)
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in [each + b"\n" for each in lines] + ([] if chunk else [rest]):
                        self.write(mask(line.decode(errors="replace")).encode())
        finally:
            with self._lock:
                self._pipe = None
                os.close(pipe)

    def last_lines(self) -> list[str]:
        """Returns the last complete lines that were printed, also while the file has no path."""
        while self._has_lines_to_copy():
            time.sleep(0.01)
        with self._lock:
            if self.path is not None:
                text = self.path.read_bytes()
            elif self._descriptor is not None:
                text = self._content(self._descriptor)
            else:
                text = b""
        return text.decode(errors="replace").splitlines()[-_TAIL_LINES:]

    def _has_lines_to_copy(self) -> bool:
        with self._lock:
            return self._pipe is not None and _has_lines(self._pipe, 0.0)

    @staticmethod
    def _content(descriptor: int) -> bytes:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            return file.read()


def _has_lines(pipe: int, timeout_ms: float | None) -> bool:
    """Waits until a pipe has lines or its last writer is gone. Returns False if the time is over."""
    poller = poll()  # select() takes no descriptor above 1023
    poller.register(pipe, POLLIN)
    return bool(poller.poll(timeout_ms))


def _opened(path: Path) -> IO[bytes]:
    with translated(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.1"))
        return path.open("ab")


class SparkSessions:
    """Starts Spark, or takes the Spark of ``spark-submit``. PySpark is imported by the first call."""

    def start(self, app_name: str, conf: Mapping[str, str], **options: Any) -> "SparkSession":
        """Starts Spark; see :func:`spark_jobs.runtime.spark.session.start_session`."""
        from spark_jobs.runtime.spark.session import start_session

        return start_session(app_name, conf, **options)

    def submitted(self, app_name: str, conf: Mapping[str, str], warehouse: str) -> "SparkSession":
        """Takes the Spark of ``spark-submit``; see :func:`spark_jobs.runtime.spark.session.submitted_session`."""
        from spark_jobs.runtime.spark.session import submitted_session

        return submitted_session(app_name, conf, warehouse)

    def has_class_archive(self, session: "SparkSession") -> bool:
        """Returns True if this host has an archive of Spark's classes; see :func:`spark_jobs.runtime.spark.session.has_class_archive`."""
        from spark_jobs.runtime.spark.session import has_class_archive

        return has_class_archive(session)


@dataclass
class SparkStart:
    """Starts Spark at most once, when it is called.

    Args:
        app_name: Name of the application in Spark's UI.
        options: Options to start Spark with.
        output: File for the output of the JVM while it runs.
        submitted: True uses the Spark that ``spark-submit`` has started.
        neighbours: Modules of the pipeline's folder that Spark's Python workers need.
        expects_short_run: Returns True if the run is likely to end before Java's second compiler has saved the time that it takes.
        sessions: Starts Spark.
    """

    app_name: str
    options: SparkOptions
    output: OutputFile
    submitted: bool = False
    neighbours: Neighbours | None = None
    expects_short_run: Callable[[], bool] = lambda: False
    sessions: SparkSessions = field(default_factory=SparkSessions)
    session: "SparkSession | None" = field(default=None, init=False)
    would_start_faster: bool = field(default=False, init=False)
    """True if the run is expected to be short, and ``spark-jobs warm-up`` has not run on this host."""

    def __call__(self) -> "SparkSession":
        from spark_jobs.runtime.spark.session import ship_modules

        if self.session is None:
            scratch = Path(mkdtemp(prefix="spark-jobs-"))
            atexit.register(shutil.rmtree, scratch, ignore_errors=True)
            self.session = self._start(scratch / "warehouse")
            if self.neighbours is not None and self.neighbours.found:
                archive = scratch / "modules.zip"
                self.neighbours.write_archive(archive)
                ship_modules(self.session, archive)
        return self.session

    def _start(self, warehouse: Path) -> "SparkSession":
        options = self.options
        # Spark creates this directory in the current folder, although only a metastore puts tables there
        metastore = options.conf.get(_CATALOG, _FORGETS) != _FORGETS
        aside = {} if metastore else {"spark.sql.warehouse.dir": str(warehouse)}
        if self.submitted:
            with _own_interrupts():
                return self.sessions.submitted(self.app_name, options.conf, str(warehouse))
        try:
            with printing_to(self.output, environment_mask()), _own_interrupts():
                short = self.expects_short_run()
                if short:
                    os.write(
                        2, b"A short run is expected: Java starts without its second compiler, and with its serial collector.\n"
                    )
                session = self.sessions.start(
                    self.app_name,
                    aside | dict(options.conf),
                    packages=options.packages,
                    jars=options.jars,
                    py_files=options.py_files,
                    driver_memory=options.driver_memory,
                    for_a_short_run=short,
                )
                self.would_start_faster = short and not self.sessions.has_class_archive(session)
                return session
        except MissingRequirementError as error:
            if self.output.path is not None:
                error.evidence["logs"] = [str(self.output.path)]
            error.evidence["lines"] = self.output.last_lines()
            raise

    def showing(self, progress: "Progress", doing: str) -> "Callable[[], SparkSession]":
        """Returns a start of Spark that shows its progress, and then shows ``doing``."""

        def start() -> "SparkSession":
            progress.doing(f"{doing}: starting Spark")
            session = self()
            progress.doing(doing)
            return session

        return start

    def stop(self) -> None:
        """Ends the Spark application, if there is one, so that a cluster frees its resources."""
        if self.session is not None:
            self.session.stop()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps our handler of SIGINT. Spark's handler cancels jobs on the connection that the interrupted call is using."""
    standing = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, standing)


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Shows warnings of the user's code, but not the logs of this package and of the gateway to the JVM.

    Those are raised as errors, too, or are in the home's log. PySpark's log of a query that cannot be analysed is not shown either: the
    error says it, without the plan and the Java stack. If the user's module has configured logging, only this log is left out.
    """
    from pyspark.logger import PySparkLogger

    for name in _LOGGED_AND_RAISED:
        PySparkLogger.getLogger(name).disabled = True
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter())
    handler.addFilter(lambda record: record.name.partition(".")[0] != "spark_jobs" and record.module not in _GATEWAY)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def standing_stderr() -> TextIO:
    """Returns a copy of standard error that stays even if its descriptor is redirected later; masked if standard error is masked."""
    return standing(sys.stderr)


@contextmanager
def printing_to(output: OutputFile, mask: Mask = unmasked) -> Iterator[None]:
    """Redirects the descriptors 1 and 2 to ``output`` while open. Processes that are started inside keep the redirection.

    With a mask, or if the file has no path yet, a thread of this process copies line by line while there is a writer.

    Raises:
        StorageError: The file cannot be opened.
    """
    target = output.open()
    _flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    writer, failed = None, False
    try:
        if mask is not unmasked or output.path is None:
            reading, target = os.pipe()
            writer = output.copy(reading, mask)
        for descriptor in kept:
            os.dup2(target, descriptor)
        if writer is None:
            output.close()
        else:
            os.close(target)
        yield
    except BaseException:
        failed = True
        raise
    finally:
        _flush()
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        if writer is not None and failed:  # the process has failed, and the caller reads its last lines now
            writer.join(_LAST_LINES_S)


def _flush() -> None:
    flushes: list[Callable[[], None]] = [sys.stdout.flush, sys.stderr.flush]
    for flush in flushes:
        flush()
