"""How every command speaks: to people in text, to programs in one JSON document, and with one exit code per kind of error."""

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
from pydantic import BaseModel, TypeAdapter
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from spark_jobs.api.parameters import environment_mask
from spark_jobs.cli.answers import Failure
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import ExitCode, Retry, StorageError, StorageFullError, StreamPipelineError
from spark_jobs.protocol.masking import Mask, masked_error, unmasked
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.visible import visible
from spark_jobs.storage.os_errors import is_full, storage_error

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells count."""
CLOSED = 141
"""128 and the number of SIGPIPE: whoever has read the answer reads no more."""
DEFECT = 1
"""An exception that no code of ours expects."""
_PLAIN_WIDTH = 240
"""Where nobody looks there is no width: a path is never cut."""
_HEADLINES = {ExitCode.REFUSED: "Refused", ExitCode.FAILED: "Failed", ExitCode.UNKNOWN: "Outcome unknown"}
_INTERRUPTED = ErrorReport(
    error="Interrupted",
    retry=Retry.AT_ONCE.value,
    failed="The command was interrupted.",
    safe="What was made durable is kept.",
    remedy="Run the same command again: it goes on from there.",
)


class Output(StrEnum):
    """Who reads the answer."""

    TEXT = "text"
    JSON = "json"
    SCHEMA = "schema"
    """The JSON schema of the JSON answer, instead of doing anything."""


def output_option(answer: Any) -> Any:
    """The option ``--output`` of a command that answers with ``answer``."""

    def show_schema(chosen: Output) -> Output:
        if chosen is Output.SCHEMA:
            typer.echo(json.dumps(TypeAdapter(answer | Failure).json_schema(), indent=2))
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
    """Where a command's answer goes.

    Args:
        output: Who reads it.
        stdout: The process's own standard output.
        mask: Takes secrets out of what is reported.
    """

    output: Output
    stdout: TextIO
    mask: Mask = unmasked
    people: Console = field(init=False)
    """Standard output, or, where a program reads that, standard error."""
    aside: Console = field(init=False)
    """Standard error: progress and failures."""
    if_interrupted: ErrorReport = _INTERRUPTED
    """What is reported when the user ends the command; a command that knows more says it here."""

    def __post_init__(self) -> None:
        self.people = console(stderr=self.output is Output.JSON)
        self.aside = console(stderr=True)

    def answer(self, document: BaseModel, *text: RenderableType) -> None:
        """Gives the command's one answer: ``document`` to a program, ``text`` to people."""
        with delivering():
            if self.output is Output.JSON:
                self._write(document)
            else:
                self.say(*text)

    def say(self, *text: RenderableType) -> None:
        """Tells people something."""
        for part in text:
            self.people.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap is True)

    def fail(self, error: StreamPipelineError) -> None:
        """Reports an error."""
        self._fail(report_error(masked_error(error, self.mask)), _HEADLINES.get(error.exit_code, "Failed"))

    def interrupted(self) -> None:
        """Reports that the user has ended the command."""
        self._fail(self.if_interrupted, "Interrupted")

    def defect(self, error: Exception) -> None:
        """Reports an exception that is our own fault."""
        with suppress(OSError):
            self.aside.print(self.mask("".join(traceback.format_exception(error)).rstrip()))
        report = ErrorReport(
            error=type(error).__name__,
            retry=Retry.NEVER.value,
            failed=self.mask(f"{type(error).__name__}: {error}"),
            remedy="This is a defect of spark-jobs: please report it with the lines above.",
        )
        self._fail(report, "Defect")

    def _fail(self, report: ErrorReport, headline: str) -> None:
        """Reports to a program and to people. What neither stream takes is left unsaid: the exit code says it."""
        if self.output is Output.JSON:
            with suppress(OSError):
                self._write(Failure(error=report))
        with suppress(OSError):
            self._explain(report, headline)

    def _explain(self, report: ErrorReport, headline: str) -> None:
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
        for name, text in (("exists", report.exists), ("safe", report.safe), ("to do", remedy), ("logs", logs)):
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
    """Formats log records for a terminal: what they quote of others is made visible."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _VisibleConsole(Console):
    """The one way of text to people: every text that is shown is made visible."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        if isinstance(renderable, str):
            renderable = visible(renderable)
        elif isinstance(renderable, Text):  # before its lines are made
            renderable, plain = renderable.copy(), renderable.plain
            renderable.plain = visible(plain)
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raises the ``BrokenPipeError``, which is being handled; Rich would exit."""
        raise


def console(*, stderr: bool, file: TextIO | None = None) -> Console:
    """Returns a console that takes no text for markup, and shows what a terminal would obey."""
    made = _VisibleConsole(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PLAIN_WIDTH
    return made


@contextmanager
def delivering() -> Iterator[None]:
    """Tells what keeps standard output from taking what is written inside.

    Raises:
        StorageError: It is full, or cannot be written.
        typer.Exit: Nobody reads it any more.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise typer.Exit(CLOSED) from error
    except OSError as error:
        kind = StorageFullError if is_full(error) else StorageError
        raise kind(
            f"Standard output does not take the answer: {error.strerror}.",
            safe="What the command has done is done.",
            remedy="Free space where it goes; spark-jobs status shows what there is.",
            path="standard output",
            errno=error.errno,
        ) from error


def prepare_streams() -> None:
    """Makes the standard streams fit for any text and for any shell, before a command begins.

    One that is closed is the null device from then on: the next file that is opened would get its number. A character that an encoding
    does not have is escaped.
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

    It goes to the JVM too, and what fails there can be noticed before ``KeyboardInterrupt``, or while that unwinds.
    """

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.came = True
        signal.default_int_handler(number, frame)


@contextmanager
def remembered_interrupt() -> Iterator[Interrupt]:
    """Handles SIGINT by an :class:`Interrupt` while it is open, in the thread that signals come to."""
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
    """A text stream that takes secrets out of what is printed; in all else it is the stream that it stands for."""

    def __init__(self, stream: TextIO, mask: Mask) -> None:
        self._stream, self.mask = stream, mask

    def write(self, text: str) -> int:
        """Writes a text without secrets. Returns the length of what was given."""
        self._stream.write(self.mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes lines without secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def standing(stream: TextIO) -> TextIO:
    """Returns a stream to where this one goes now, whatever its descriptor is used for later; masked, if it is."""
    with suppress(UnsupportedOperation):
        copy = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors="backslashreplace")
        return cast(TextIO, MaskedStream(copy, stream.mask)) if isinstance(stream, MaskedStream) else copy
    return stream


@contextmanager
def _reported_termination(terminal: Terminal) -> Iterator[None]:
    """While open, SIGTERM is reported as an interrupt before it ends the process, at once, by that signal.

    A handler of somebody else stays. Nothing is unwound: that could take as long as a batch.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    streams = terminal.stdout, sys.stderr
    copies = stdout, stderr = standing(streams[0]), standing(streams[1])  # a start of Spark has the descriptors for its log
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
    """While open, others can write no file that this process makes, or one that it starts, whatever the umask was."""
    standing = os.umask(0o002)
    os.umask(standing | 0o002)
    try:
        yield
    finally:
        os.umask(standing)


@contextmanager
def _masked_streams(mask: Mask) -> Iterator[None]:
    """While open, everything that Python prints passes through ``mask``."""
    if mask is unmasked:
        yield
        return
    out, err = MaskedStream(sys.stdout, mask), MaskedStream(sys.stderr, mask)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
        yield


@contextmanager
def command(output: Output) -> Iterator[Terminal]:
    """Every command's body runs in this: the one place where errors become exit codes.

    The mask is made first, before a pipeline is imported. Where a program reads standard output, whatever else prints there is sent to
    standard error. What fails after SIGINT came is an interrupt, whatever it looks like.
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
        except Exception as error:  # a process edge
            raise typer.Exit(_report(terminal, error, interrupt)) from error


def _report(terminal: Terminal, error: Exception, interrupt: Interrupt) -> int:
    """Tells what has failed, and returns the exit code."""
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
