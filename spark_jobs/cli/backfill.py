"""``spark-jobs backfill``: processes rows that a pipeline has left out."""

from typing import Annotated, Any

import typer

from spark_jobs.cli.answers import RunAnswer, TakenAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import SPARK_OPTIONS, Entry, Home, Params, ParamsFile, WorkRoot, takes
from spark_jobs.cli.run import RunIdOption, order_run
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import LossId, RunId, new_run_id
from spark_jobs.protocol.start_requests import StartOptions

Losses = Annotated[
    list[str] | None,
    typer.Option(
        "--loss", metavar="LOSS", help="The loss, such as 3-1: see spark-jobs losses. Repeatable. By default all that can be."
    ),
]


@takes(SPARK_OPTIONS)
def backfill(
    context: typer.Context,
    entry: Entry,
    home: Home,
    work_root: WorkRoot = None,
    loss: Losses = None,
    param: Params = None,
    params_file: ParamsFile = None,
    run_id: RunIdOption = None,
    output: Annotated[Output, output_option(RunAnswer | TakenAnswer)] = Output.TEXT,
    **options: Any,
) -> None:
    """Process rows that stages with tolerate= have left out, with the corrected code, and publish them.

    It reads no new rows of bounded sources. A pipeline without an end goes on afterwards. No other driver may be running.
    """
    with command(output) as terminal:
        files, _ = open_home(home, work_root)
        losses = [LossId(each) for each in loss] if loss else LossLedger(files).can_be_backfilled()
        if not losses:
            raise RejectedError(
                f"{files.url} has no loss that can be backfilled.",
                remedy="spark-jobs losses lists its losses. A loss of deleted rows can only be accepted.",
            )
        chosen = StartOptions(run=RunId(run_id) if run_id else new_run_id(), backfill=tuple(losses))
        order_run(context, terminal, files, chosen)
