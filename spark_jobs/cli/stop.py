"""``spark-jobs stop``: ends the running pipeline with a savepoint."""

from typing import Annotated

import typer

from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.options import Asker, Home, Target, Timeout
from spark_jobs.cli.requests import TIMEOUT_S, ask, shown
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.protocol.checkpoint_requests import Wanted


def stop(
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
        answer = ask(terminal, home, Wanted.STOP, asker=request, timeout_s=timeout, drain=drain, target=target)
        ended = "drained and stopped" if answer.drained else "stopped"
        terminal.answer(answer, *shown(answer, f"{answer.pipeline} is {ended} at checkpoint {answer.checkpoint}"))
