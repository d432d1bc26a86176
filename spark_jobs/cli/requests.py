"""``spark-jobs checkpoint``, ``savepoint`` and ``stop``: request something of the running pipeline, and wait for the answer."""

import logging
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.checkpoint.unfinished_requests import UnfinishedRequest, incomplete
from spark_jobs.cli import words
from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.homes import heartbeats, open_home
from spark_jobs.cli.options import Asker, Home, Target, Timeout
from spark_jobs.cli.pauses import Pauses
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.terminal import Output, Terminal, command, output_option
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import ErrorReport, PipelineDocument
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.reports import report_error
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.in_process import wait_here
from spark_jobs.waits.requests import RequestLook, RequestWait, answer_to

TIMEOUT_S = 600.0
_LOG = logging.getLogger(__name__)


def checkpoint(
    context: typer.Context,
    home: Home,
    request: Asker = None,
    timeout: Timeout = TIMEOUT_S,
    output: Annotated[Output, output_option(CheckpointAnswer)] = Output.TEXT,
) -> None:
    """Ask the running pipeline for a checkpoint now, and wait until it is complete and published in every sink whose policy says so.

    The checkpoint ignores the interval and the pause between checkpoints. Repeated with the same id, the command only waits on.
    """
    with command(output) as terminal:
        answer = _ask(terminal, Pauses.of(context), home, Wanted.CHECKPOINT, asker=request, timeout_s=timeout)
        terminal.answer(answer, *_shown(answer, f"Checkpoint {answer.checkpoint} of {answer.pipeline} is complete"))


def savepoint(
    context: typer.Context,
    home: Home,
    target: Target = None,
    request: Asker = None,
    timeout: Timeout = TIMEOUT_S,
    output: Annotated[Output, output_option(CheckpointAnswer)] = Output.TEXT,
) -> None:
    """Ask the running pipeline for a savepoint, and wait until it is complete. The pipeline runs on.

    A savepoint is a directory with everything that a start needs to go on from it, even after it was moved. It is yours: it stays until
    you delete it with spark-jobs dispose.
    """
    with command(output) as terminal:
        answer = _ask(terminal, Pauses.of(context), home, Wanted.SAVEPOINT, asker=request, timeout_s=timeout, target=target)
        terminal.answer(
            answer, *_shown(answer, f"The savepoint of {answer.pipeline}, at checkpoint {answer.checkpoint}, is whole")
        )


def stop(
    context: typer.Context,
    home: Home,
    drain: Annotated[
        bool, typer.Option("--drain", help="First flush windows, joins and timers. This finishes the pipeline.")
    ] = False,
    target: Target = None,
    request: Asker = None,
    timeout: Timeout = TIMEOUT_S,
    output: Annotated[Output, output_option(CheckpointAnswer)] = Output.TEXT,
) -> None:
    """Stop the running pipeline with a savepoint that contains every row that was read.

    The next start goes on after the last row, as if the pipeline had not stopped. The rows become public by their sinks' policies: with
    final, at the end of the round. With --drain, windows, joins and timers are flushed first, and the pipeline is finished.
    """
    with command(output) as terminal:
        answer = _ask(
            terminal, Pauses.of(context), home, Wanted.STOP, asker=request, timeout_s=timeout, drain=drain, target=target
        )
        ended = "drained and stopped" if answer.drained else "stopped"
        terminal.answer(answer, *_shown(answer, f"{answer.pipeline} is {ended} at checkpoint {answer.checkpoint}"))


def _ask(
    terminal: Terminal,
    pause: Pauses,
    home: str,
    wanted: Wanted,
    *,
    asker: str | None,
    timeout_s: float,
    drain: bool = False,
    target: str | None = None,
) -> CheckpointAnswer:
    """Sends a request, waits, and returns the answer. After a stop it also waits for the end of the driver.

    Repeated with the same id, it only waits on.

    Raises:
        InvalidParameterError: The target is not a directory that can be opened. No request was sent.
        StreamPipelineError: The request was refused, or answered with an error, or has no answer in time.
    """
    asked = request_id(asker, wanted)
    files, pipeline = open_home(home)
    progress = Progress(terminal.aside, f"{wanted.value} of {pipeline.name}")
    place = None if target is None else open_place(target).url  # the driver has another working directory
    terminal.if_interrupted = _interrupted(asked, wanted, others=drain or target is not None)
    CheckpointRequests(files).ask(asked, drain=drain, target=place)
    progress.follow(heartbeats(files))
    with progress.shown():
        wait = _AnswerWait(files, asked, restart_timeout_s=0.0, end_timeout_s=timeout_s, wanted=wanted.value)
        wait_for(wait, time.monotonic() + timeout_s, timeout_s, pause)
    return _answer(files, pipeline, answer_to(files, asked))


def wait_for(wait: HomeWait[Any, dict[str, Any]], end_s: float, timeout_s: float, pause: Pauses) -> None:
    """Waits in the process of a command.

    Args:
        wait: The wait.
        end_s: The deadline on a monotonic clock.
        timeout_s: The configured time, for the error.
        pause: Waits between two looks.
    """
    wait_here(wait, end_s=end_s, timeout_s=timeout_s, log=_LOG, pause=pause)


def _shown(answer: CheckpointAnswer, done: str) -> list[RenderableType]:
    """Returns the answer for people, after a sentence that says what is done."""
    took = f", and took {words.duration(answer.duration_s)}" if answer.duration_s is not None else ""
    amount = f"{words.count(answer.rows)} {words.ROWS_OF_CHECKPOINT}, {words.size(answer.size_bytes)}"
    made: list[RenderableType] = [Text(f"{done}: {amount}{took}.", style="bold green")]
    if answer.savepoint is not None:
        made.append(words.facts(("savepoint", answer.savepoint)))
    if answer.sinks:
        headings = ("sink", "Delta version", words.ROWS_OF_CHECKPOINT, "size", "table")
        sinks = words.table("", *headings, right=(words.ROWS_OF_CHECKPOINT, "size"))
        for name, sink in answer.sinks.items():
            sinks.add_row(
                Text(name), words.version(sink.version), words.count(sink.rows), words.size(sink.size_bytes), Text(sink.table)
            )
        made.append(sinks)
    if answer.behind:
        made.append(Text(words.behind(answer.behind), style="yellow"))
    if answer.blocked:
        made.append(words.blocked(answer.blocked))
    return made


@dataclass(kw_only=True)
class _AnswerWait(RequestWait):
    """The wait of a command. Its errors name the option with which another command waits for the same answer.

    Args:
        wanted: The requested action.
    """

    wanted: str

    def no_driver(self, found: UnfinishedRequest | None) -> StreamPipelineError:
        request = RequestId(self.request)
        if found is None:
            return _unanswered(InterruptedRunError, f"The driver has ended without a {self.wanted}.", request)
        return incomplete(
            f"The driver has ended before it had finished the work after checkpoint {found.checkpoint}.",
            request,
            found,
            f"Start the pipeline again: it finishes this work first. Then repeat the command with --request {request}.",
        )

    def too_late(self, look: RequestLook, timeout_s: float | None) -> StreamPipelineError | None:
        if look.answered:
            return None
        failed = f"There is no {self.wanted} after {words.duration(timeout_s or 0.0)}."
        return _unanswered(DeadlineExceededError, failed, RequestId(self.request))


def _interrupted(request: RequestId, wanted: Wanted, *, others: bool) -> ErrorReport:
    """Returns the report for a user who interrupts the wait. The request stays, and a new command would be a second request."""
    error = _unanswered(InterruptedRunError, f"The waiting for the {wanted.value} was interrupted.", request)
    report = report_error(error)
    same = ", and keep the other options" if others else ""
    return report.model_copy(update={"error": "Interrupted", "remedy": f"{report.remedy.rstrip('.')}{same}."})


def _unanswered(kind: type[StreamPipelineError], failed: str, request: RequestId) -> StreamPipelineError:
    return kind(
        failed,
        exists="The request stays: the pipeline answers it as soon as it can, also after a restart.",
        safe="Nothing was lost.",
        remedy=f"See spark-jobs status. To wait again, add --request {request}.",
        request=request,
    )


def _answer(files: Files, pipeline: PipelineDocument, response: CheckpointResponse) -> CheckpointAnswer:
    if response.checkpoint is None:
        raise ValueError(f"{response.request} was answered with neither a checkpoint nor an error")
    return CheckpointAnswer.of(
        response,
        pipeline=pipeline.name,
        home=files.url,
        rows=sum(sink.rows for sink in response.sinks.values()),
        size_bytes=sum(sink.size_bytes for sink in response.sinks.values()),
    )
