"""``spark-jobs savepoint``: takes a savepoint of the running pipeline."""

from typing import Annotated

from spark_jobs.cli.answers import CheckpointAnswer
from spark_jobs.cli.options import Asker, Home, Target, Timeout
from spark_jobs.cli.requests import TIMEOUT_S, ask, shown
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.protocol.checkpoint_requests import Wanted


def savepoint(
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
        answer = ask(terminal, home, Wanted.SAVEPOINT, asker=request, timeout_s=timeout, target=target)
        terminal.answer(
            answer, *shown(answer, f"The savepoint of {answer.pipeline}, at checkpoint {answer.checkpoint}, is whole")
        )
