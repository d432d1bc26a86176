"""``spark-jobs accept``: accepts losses, so that nobody needs to look at them any more."""

from typing import Annotated

import typer
from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import AcceptAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.losses import entry_of, shown
from spark_jobs.cli.options import Home
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.protocol.ids import LossId

Losses = Annotated[
    list[str], typer.Argument(metavar="LOSS", help="The loss, such as 3-1: see spark-jobs losses. Give several, or one.")
]


def accept(
    losses: Losses,
    home: Home,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for readers of the ledger.", show_default=False)],
    output: Annotated[Output, output_option(AcceptAnswer)] = Output.TEXT,
) -> None:
    """Accept losses: their rows stay out, and they are closed. Can be repeated; the first reason stays."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        ledger = LossLedger(files)
        accepted = tuple(entry_of(each) for each in ledger.accept([LossId(loss) for loss in losses], reason))
        left = sum(each.state is LossState.OPEN for each in ledger.entries())
        answer = AcceptAnswer(pipeline=pipeline.name, home=files.url, losses=accepted, open=left)
        terminal.answer(answer, *shown(accepted), _left(left))


def _left(count: int) -> Text:
    if not count:
        return Text("No loss is open.", style="bold green")
    return Text("1 loss is open." if count == 1 else f"{words.count(count)} losses are open.", style="yellow")
