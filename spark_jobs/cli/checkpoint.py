"""``spark-jobs checkpoint``: takes a checkpoint of the running pipeline now."""

from typing import Annotated

from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.options import Asker, Home, Timeout
from spark_jobs.cli.requests import TIMEOUT_S, ask, shown
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.protocol.checkpoint_requests import Wanted


def checkpoint(
    home: Home,
    request: Asker = None,
    timeout: Timeout = TIMEOUT_S,
    output: Annotated[Output, output_option(CheckpointAnswer)] = Output.TEXT,
) -> None:
    """Ask the running pipeline for a checkpoint now, and wait until it is complete and published in every sink whose policy says so.

    The checkpoint ignores the interval and the pause between checkpoints. Repeated with the same id, the command only waits on.
    """
    with command(output) as terminal:
        answer = ask(terminal, home, Wanted.CHECKPOINT, asker=request, timeout_s=timeout)
        terminal.answer(answer, *shown(answer, f"Checkpoint {answer.checkpoint} of {answer.pipeline} is complete"))
