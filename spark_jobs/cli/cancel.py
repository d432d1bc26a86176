"""``spark-jobs cancel``: ends the pipeline's driver at once, without a checkpoint."""

import time
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import CancelAnswer
from spark_jobs.cli.homes import heartbeats, open_home
from spark_jobs.cli.options import EndTimeout, Home
from spark_jobs.cli.pauses import Pauses
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.requests import TIMEOUT_S, wait_for
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.cancelling import Cancelled, outcome_of
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.storage.files import Files
from spark_jobs.waits.ends import end_all

REASON = "it was requested with spark-jobs cancel"


def cancel(
    context: typer.Context,
    home: Home,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, for the supervisor of the pipeline.", show_default=False)
    ] = REASON,
    timeout: EndTimeout = TIMEOUT_S,
    output: Annotated[Output, output_option(CancelAnswer)] = Output.TEXT,
) -> None:
    """End the driver that is running or starting, and wait for its end. It takes no further checkpoint.

    Nothing is lost: staged and public rows stay, and the next start goes on after the last batch. A pending restart is prevented, and a
    task that supervises the pipeline fails without a retry. To end with a checkpoint, use stop.
    """
    with command(output) as terminal:
        files, pipeline = open_home(home)
        progress = Progress(terminal.aside, f"cancel of {pipeline.name}")
        progress.follow(heartbeats(files))
        with progress.shown():
            cancelled = _ended(files, reason, timeout, Pauses.of(context))
        answer = _answer(files, pipeline, cancelled)
        terminal.answer(answer, *_text(answer))


def _ended(files: Files, reason: str, timeout_s: float, pause: Pauses) -> Cancelled:
    """Cancels attempts until no restart follows. Returns the last attempt."""
    end_s = time.monotonic() + timeout_s
    last = end_all(files, f"spark-jobs {uuid4()}", reason, lambda end: wait_for(end, end_s, timeout_s, pause), pause)
    if last is None:
        raise _nothing_runs(files)
    return last


def _nothing_runs(files: Files) -> RejectedError:
    return RejectedError(
        f"No attempt is running in {files.url}, and no restart is pending: there is nothing to cancel.",
        exists="spark-jobs status shows how the last attempt has ended.",
        remedy="Check --home.",
        home=files.url,
    )


def _answer(files: Files, pipeline: PipelineDocument, cancelled: Cancelled) -> CancelAnswer:
    outcome, head = outcome_of(files, cancelled), CheckpointStore(files).head()
    return CancelAnswer(
        pipeline=pipeline.name,
        home=files.url,
        attempt=outcome.attempt,
        run=outcome.run,
        cancelled=outcome.error is not None,
        checkpoint=head.checkpoint if head else None,
        completed_at=head.completed_at if head else None,
    )


def _text(answer: CancelAnswer) -> list[RenderableType]:
    if answer.cancelled:
        done = Text(
            f"{answer.pipeline} is cancelled: attempt {answer.attempt} of run {answer.run} has ended.", style="bold green"
        )
    else:
        done = Text(f"Attempt {answer.attempt} of run {answer.run} ended before the cancel reached it.", style="yellow")
    checkpoint = "none yet"
    if answer.completed_at is not None:
        checkpoint = f"{answer.checkpoint}, of {words.moment(answer.completed_at)}"
    again = "run it again: it goes on after the last batch of each stage. In Airflow clear the task"
    return [done, words.facts(("checkpoint", checkpoint), ("to go on", again))]
