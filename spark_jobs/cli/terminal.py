"""The output of every command: text for people, one JSON document for programs, and one exit code per kind of error."""

import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from io import TextIOWrapper, UnsupportedOperation
from types import FrameType
from typing import Any, TextIO, cast

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from spark_jobs.api.parameters import environment_mask
from spark_jobs.cli.answers import Failure, described_schema
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import ExitCode, Retry, StorageError, StorageFullError, StreamPipelineError, error_class
from spark_jobs.protocol.masking import Mask, masked_error, unmasked
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.visible import visible
from spark_jobs.storage.os_errors import is_full, storage_error

INTERRUPTED = 130
"""128 plus the number of SIGINT, as in shells."""
CLOSED = 141
"""128 plus the number of SIGPIPE: the reader of the answer has closed the pipe."""
DEFECT = 1
"""The exit code of an exception that no code of ours expects."""
_PLAIN_WIDTH = 240
"""The width without a terminal. It is large enough to show whole paths."""
_HEADLINES = {ExitCode.REFUSED: "Refused", ExitCode.FAILED: "Failed", ExitCode.UNKNOWN: "Outcome unknown"}
_INTERRUPTED = ErrorReport(
    error="Interrupted",
    retry=Retry.AT_ONCE.value,
    failed="The command was interrupted.",
    safe="All durable work is kept.",
    remedy="Run the same command again: it goes on from there.",
)


class Output(StrEnum):
    """The reader of the answer."""

    TEXT = "text"
    JSON = "json"
    SCHEMA = "schema"
    """Prints the JSON schema of the JSON answer instead of running the command."""


def output_option(answer: Any) -> Any:
    """Returns the option ``--output`` of a command that answers with ``answer``."""

    def show_schema(chosen: Output) -> Output:
        if chosen is Output.SCHEMA:
            typer.echo(json.dumps(described_schema(answer | Failure), indent=2))
            raise typer.Exit
        return chosen

    # eager: the schema is shown without the other arguments
    return typer.Option(
        "--output",
        is_eager=True,
        callback=show_schema,
        help="text for people; json: exactly one document on stdout; schema: that document's JSON schema.",
    )


@dataclass
class Terminal:
    """The destination of a command's answer.

    Args:
        output: The reader of the answer.
        stdout: The process's own standard output.
        mask: Removes secrets from reports.
    """

    output: Output
    stdout: TextIO
    mask: Mask = unmasked
    people: Console = field(init=False)
    """Standard output, or standard error if a program reads standard output."""
    aside: Console = field(init=False)
    """Standard error: progress and failures."""
    if_interrupted: ErrorReport = _INTERRUPTED
    """The report if the user interrupts the command. A command may set a more specific one."""

    def __post_init__(self) -> None:
        self.people = console(stderr=self.output is Output.JSON)
        self.aside = console(stderr=True)

    def answer(self, document: BaseModel, *text: RenderableType) -> None:
        """Writes the command's only answer: ``document`` for a program, ``text`` for people."""
        with delivering():
            if self.output is Output.JSON:
                self._write(document)
            else:
                self.say(*text)

    def say(self, *text: RenderableType) -> None:
        """Prints text for people."""
        for part in text:
            self.people.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap is True)

    def fail(self, error: StreamPipelineError) -> None:
        """Reports an error."""
        self._fail(report_error(masked_error(error, self.mask)), _HEADLINES.get(error.exit_code, "Failed"))

    def interrupted(self) -> None:
        """Reports that the user has ended the command."""
        self._fail(self.if_interrupted, "Interrupted")

    def defect(self, error: Exception) -> None:
        """Reports an exception that is a defect of this package."""
        with suppress(OSError):
            self.aside.print(self.mask("".join(traceback.format_exception(error)).rstrip()))
        report = ErrorReport(
            error=type(error).__name__,
            retry=Retry.NEVER.value,
            failed=self.mask(f"{type(error).__name__}: {error}"),
            remedy="This is a defect of spark-jobs. Please report it with the lines above.",
        )
        self._fail(report, "Defect")

    def _fail(self, report: ErrorReport, headline: str) -> None:
        """Reports to a program and to people. If a stream fails, the exit code still tells."""
        kind = error_class(report.error)
        code, documentation = (None, None) if kind is None else (kind.code, kind.documentation)
        if self.output is Output.JSON:
            with suppress(OSError):
                self._write(Failure(error=report, code=code, documentation=documentation))
        with suppress(OSError):
            self._explain(report, headline, documentation or "")

    def _explain(self, report: ErrorReport, headline: str, documentation: str) -> None:
        for line in report.evidence.get("lines", []):
            self.aside.print(Text(f"  {line}", style="dim"))
        mistakes = report.evidence.get("mistakes", [])
        failed = f"{len(mistakes)} mistakes were found." if mistakes else report.failed
        self.aside.print(Text.assemble((f"{headline}: ", "bold red"), (failed, "red")))
        parts = Table.grid(padding=(0, 2))
        for number, mistake in enumerate(mistakes, 1):
            parts.add_row(Text(f"  {number}", style="bold"), Text(mistake["failed"], style="red"))
            parts.add_row(Text("  to do", style="bold"), Text(mistake["remedy"]))
        command_line = report.evidence.get("command", "")
        remedy = "" if mistakes else report.remedy.removesuffix(command_line).rstrip()
        logs = ", ".join(report.evidence.get("logs", []))
        rows = {"exists": report.exists, "safe": report.safe, "to do": remedy, "logs": logs, "read": documentation}
        for name, text in rows.items():
            if text:
                parts.add_row(Text(f"  {name}", style="bold"), Text(text))
        if parts.row_count:
            self.aside.print(parts)
        if command_line:
            self.aside.print(Text(f"  {command_line}", style="cyan"), soft_wrap=True)  # in one line, so that it can be copied

    def _write(self, document: BaseModel) -> None:
        self.stdout.write(json.dumps(document.model_dump(mode="json"), indent=2) + "\n")  # ASCII: for every encoding and terminal
        self.stdout.flush()


class VisibleFormatter(logging.Formatter):
    """Formats log records for a terminal, and escapes control characters of quoted text."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _VisibleConsole(Console):
    """A console that escapes control characters in every text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        if isinstance(renderable, str):
            renderable = visible(renderable)
        elif isinstance(renderable, Text):  # before it is split into lines
            renderable, plain = renderable.copy(), renderable.plain
            renderable.plain = visible(plain)
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Re-raises the ``BrokenPipeError`` that is being handled. Rich would exit."""
        raise


def console(*, stderr: bool, file: TextIO | None = None) -> Console:
    """Returns a console that does not interpret markup, and escapes control characters."""
    made = _VisibleConsole(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PLAIN_WIDTH
    return made


@contextmanager
def delivering() -> Iterator[None]:
    """Turns failures to write to standard output into errors.

    Raises:
        StorageError: Standard output is full or cannot be written.
        typer.Exit: The reader has closed the pipe.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise typer.Exit(CLOSED) from error
    except OSError as error:
        kind = StorageFullError if is_full(error) else StorageError
        raise kind(
            f"The answer cannot be written to standard output: {error.strerror}.",
            safe="The command itself has succeeded.",
            remedy="Free space at its destination. spark-jobs status shows the state of the pipeline.",
            path="standard output",
            errno=error.errno,
        ) from error


def prepare_streams() -> None:
    """Prepares the standard streams for any text and any shell, before a command begins.

    A closed stream is replaced by the null device; otherwise the next opened file would get its descriptor. Characters that the encoding
    does not have are escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    sys.stdin, sys.stdout, sys.stderr = (
        sys.stdin or os.fdopen(0),
        sys.stdout or os.fdopen(1, "w"),
        sys.stderr or os.fdopen(2, "w"),
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Interrupt:
    """Remembers that SIGINT came.

    The JVM gets the signal, too. Its failures can be noticed before ``KeyboardInterrupt`` is raised, or while that unwinds.
    """

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal."""
        self.came = True
        signal.default_int_handler(number, frame)


@contextmanager
def remembered_interrupt() -> Iterator[Interrupt]:
    """Handles SIGINT by an :class:`Interrupt` while open, in the thread that receives signals."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    standing = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, standing)


class MaskedStream:
    """A text stream that removes secrets from the text. In all other respects it is the wrapped stream."""

    def __init__(self, stream: TextIO, mask: Mask) -> None:
        self._stream, self.mask = stream, mask

    def write(self, text: str) -> int:
        """Writes a text without secrets. Returns the length of the original text."""
        self._stream.write(self.mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes lines without secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def standing(stream: TextIO) -> TextIO:
    """Returns a copy of a stream that stays even if its descriptor is redirected later; masked if the stream is masked."""
    with suppress(UnsupportedOperation):
        copy = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors="backslashreplace")
        return cast(TextIO, MaskedStream(copy, stream.mask)) if isinstance(stream, MaskedStream) else copy
    return stream


@contextmanager
def _reported_termination(terminal: Terminal) -> Iterator[None]:
    """Reports SIGTERM as an interrupt while open; then the signal ends the process at once.

    A foreign handler stays. The stack is not unwound, because that could take as long as a batch.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    streams = terminal.stdout, sys.stderr
    copies = stdout, stderr = standing(streams[0]), standing(streams[1])  # a start of Spark redirects the descriptors to its log
    last = Terminal(terminal.output, stdout, terminal.mask)
    last.aside = console(stderr=True, file=stderr)

    def report(number: int, frame: FrameType | None) -> None:
        last.if_interrupted = terminal.if_interrupted
        with suppress(Exception):  # such as a write into a stream that is being written
            last.interrupted()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, report)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for stream, copy in zip(streams, copies, strict=True):
            if copy is not stream:
                copy.close()


@contextmanager
def _umask_without_others() -> Iterator[None]:
    """Keeps others from writing files of this process and its children while open, with any umask."""
    standing = os.umask(0o002)
    os.umask(standing | 0o002)
    try:
        yield
    finally:
        os.umask(standing)


@contextmanager
def _masked_streams(mask: Mask) -> Iterator[None]:
    """Passes everything that Python prints through ``mask`` while open."""
    if mask is unmasked:
        yield
        return
    out, err = MaskedStream(sys.stdout, mask), MaskedStream(sys.stderr, mask)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
        yield


@contextmanager
def command(output: Output) -> Iterator[Terminal]:
    """Wraps the body of every command. Only here errors become exit codes.

    The mask is made first, before a pipeline is imported. If a program reads standard output, all other output goes to standard error.
    Every failure after SIGINT is reported as an interrupt.
    """
    with ExitStack() as stack:
        stack.enter_context(_umask_without_others())
        mask = environment_mask()
        terminal = Terminal(output, sys.stdout, mask)
        stack.enter_context(_masked_streams(mask))
        interrupt = stack.enter_context(remembered_interrupt())
        stack.enter_context(_reported_termination(terminal))
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(VisibleFormatter())
        if output is Output.JSON:
            stack.enter_context(redirect_stdout(sys.stderr))
        try:
            yield terminal
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            terminal.interrupted()
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:  # the edge of the process
            raise typer.Exit(_report(terminal, error, interrupt)) from error


def _report(terminal: Terminal, error: Exception, interrupt: Interrupt) -> int:
    """Reports an error and returns the exit code."""
    if interrupt.came:
        terminal.interrupted()
        return INTERRUPTED
    if isinstance(error, OSError) and is_full(error):
        error = storage_error(str(error.filename or "A file"), error)
    if isinstance(error, StreamPipelineError):
        terminal.fail(error)
        return int(error.exit_code)
    terminal.defect(error)
    return DEFECT
