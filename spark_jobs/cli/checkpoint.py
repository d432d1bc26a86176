"""``spark-jobs checkpoint``: a checkpoint of the running pipeline, now."""

import time
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files

_LOOK_S = 0.25
_TIMEOUT_S = 600.0


def checkpoint(
    home: Home,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Who asks: the same id gets the same answer. A new one unless given.", show_default=False
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait for the answer.")] = _TIMEOUT_S,
    output: Annotated[Output, output_option(CheckpointAnswer)] = Output.TEXT,
) -> None:
    """Ask the running pipeline for a checkpoint now, and wait until it is complete and published.

    It waits for neither the interval nor the pause between checkpoints. Repeated with the same id it only waits on.
    """
    with command(output) as terminal:
        asked = request_id(request)
        files, pipeline = open_home(home)
        progress = Progress(terminal.aside, f"checkpoint of {pipeline.name}")
        response = CheckpointRequests(files).ask(asked)
        if response is None:
            progress.follow(lambda: read_status(files))
            with progress.shown():
                response = _wait(files, asked, timeout)
        if response.error is not None:
            raise reported_error(response.error)
        answer = _answer(files, pipeline, response)
        terminal.answer(answer, *_text(answer))


def _wait(files: Files, request: RequestId, timeout_s: float) -> CheckpointResponse:
    requests, end_s = CheckpointRequests(files), time.monotonic() + timeout_s
    while True:
        at_work = driver_at_work(files)  # before the answer: what it has written last is seen
        response = requests.answer_of(request)
        if response is not None:
            return response
        if not at_work:
            raise _unanswered(InterruptedRunError, "The driver has ended without taking the checkpoint.", request)
        if time.monotonic() >= end_s:
            raise _unanswered(DeadlineExceededError, f"There is no checkpoint after {words.duration(timeout_s)}.", request)
        time.sleep(_LOOK_S)


def _unanswered(kind: type[StreamPipelineError], failed: str, request: RequestId) -> StreamPipelineError:
    return kind(
        failed,
        exists="The request stays: the pipeline answers it as soon as it has taken a checkpoint, also after a restart.",
        safe="Nothing was lost.",
        remedy=f"See spark-jobs status, and wait on with --request {request}.",
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
    )


def _text(answer: CheckpointAnswer) -> list[RenderableType]:
    took = f", and took {words.duration(answer.duration_s)}" if answer.duration_s is not None else ""
    amount = f"{words.count(answer.rows)} rows, {words.size(answer.size_bytes)}"
    done = Text(f"Checkpoint {answer.checkpoint} of {answer.pipeline} is complete: {amount}{took}.", style="bold green")
    if not answer.sinks:
        return [done]
    made = words.table("", "sink", "Delta version", "rows", "size", "table", right=("rows", "size"))
    for name, sink in answer.sinks.items():
        made.add_row(
            Text(name), words.version(sink.version), words.count(sink.rows), words.size(sink.size_bytes), Text(sink.table)
        )
    return [done, made]
