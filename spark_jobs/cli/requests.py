"""The shared part of commands that send a request to a running pipeline: they ask, wait for the answer and show it."""

import time

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.checkpoint.cut_short import cut_short, incomplete
from spark_jobs.cli import words
from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.homes import heartbeats, open_home
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.terminal import Terminal
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import ErrorReport, PipelineDocument
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.reports import report_error, reported_error
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place

TIMEOUT_S = 600.0
LOOK_S = 0.25
"""Interval at which the home is checked."""


def ask(
    terminal: Terminal,
    home: str,
    wanted: Wanted,
    *,
    asker: str | None,
    timeout_s: float,
    drain: bool = False,
    target: str | None = None,
) -> CheckpointAnswer:
    """Sends a request, waits, and returns the answer. Repeated with the same id, it only waits on.

    Raises:
        InvalidParameterError: The target is not a directory that can be opened. No request was sent.
        StreamPipelineError: The request was refused, or answered with an error, or has no answer in time.
    """
    asked = request_id(asker, wanted)
    files, pipeline = open_home(home)
    progress = Progress(terminal.aside, f"{wanted.value} of {pipeline.name}")
    place = None if target is None else open_place(target).url  # the driver has another working directory
    terminal.if_interrupted = _interrupted(asked, wanted, others=drain or target is not None)
    response = CheckpointRequests(files).ask(asked, drain=drain, target=place)
    if response is None:
        progress.follow(heartbeats(files))
        with progress.shown():
            response = _wait(files, asked, wanted, timeout_s)
    if response.error is not None:
        raise reported_error(response.error)
    return _answer(files, pipeline, response)


def wait_for_end(home: str, timeout_s: float) -> None:
    """Waits until no driver is at work in a home, so that the next start finds it free."""
    files, end_s = open_home(home)[0], time.monotonic() + timeout_s
    while driver_at_work(files) and time.monotonic() < end_s:
        time.sleep(LOOK_S)


def shown(answer: CheckpointAnswer, done: str) -> list[RenderableType]:
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


def _wait(files: Files, request: RequestId, wanted: Wanted, timeout_s: float) -> CheckpointResponse:
    requests, end_s = CheckpointRequests(files), time.monotonic() + timeout_s
    while True:
        at_work = driver_at_work(files)  # before the answer is read, so that the driver's last answer is seen
        response = requests.answer_of(request)
        if response is not None:
            return response
        if not at_work:
            raise _ended(files, request, wanted)
        if time.monotonic() >= end_s:
            raise _unanswered(DeadlineExceededError, f"There is no {wanted.value} after {words.duration(timeout_s)}.", request)
        time.sleep(LOOK_S)


def _ended(files: Files, request: RequestId, wanted: Wanted) -> StreamPipelineError:
    found = cut_short(files, request)
    if found is None:
        return _unanswered(InterruptedRunError, f"The driver has ended without a {wanted.value}.", request)
    return incomplete(
        f"The driver has ended before it had finished the work after checkpoint {found.checkpoint}.",
        request,
        found,
        f"Start the pipeline again: it finishes this work first. Then repeat the command with --request {request}.",
    )


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
    return CheckpointAnswer(
        pipeline=pipeline.name,
        home=files.url,
        request=response.request,
        attempt=response.attempt,
        checkpoint=response.checkpoint,
        duration_s=response.duration_s,
        rows=sum(sink.rows for sink in response.sinks.values()),
        size_bytes=sum(sink.size_bytes for sink in response.sinks.values()),
        sinks=response.sinks,
        savepoint=response.savepoint,
        drained=response.drained,
        behind=response.behind,
        blocked=response.blocked,
    )
