"""``spark-jobs losses`` and ``accept``: list the rows of sources that a pipeline has left out, and accept these losses."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import AcceptAnswer, LossEntry, LossesAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.losses import LedgerEntry, LossLedger, LossState
from spark_jobs.protocol.ids import LossId
from spark_jobs.protocol.losses import rows_at_most, said

_STYLES = {LossState.OPEN: "yellow", LossState.ACCEPTED: "green", LossState.UNDONE: "dim", LossState.BACKFILLED: "green"}

Losses = Annotated[
    list[str], typer.Argument(metavar="LOSS", help="The loss, such as 3-1: see spark-jobs losses. Give several, or one.")
]


def losses(home: Home, output: Annotated[Output, output_option(LossesAnswer)] = Output.TEXT) -> None:
    """List the rows of sources that the pipeline has left out, and show which of these losses are closed."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        found = tuple(_entry_of(each) for each in LossLedger(files).entries())
        terminal.answer(LossesAnswer(pipeline=pipeline.name, home=files.url, losses=found), *_shown(found))


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
        accepted = tuple(_entry_of(each) for each in ledger.accept([LossId(loss) for loss in losses], reason))
        left = sum(each.state is LossState.OPEN for each in ledger.entries())
        answer = AcceptAnswer(pipeline=pipeline.name, home=files.url, losses=accepted, open=left)
        terminal.answer(answer, *_shown(accepted), _left(left))


def _entry_of(entry: LedgerEntry) -> LossEntry:
    """Returns an entry of the ledger as an answer of a command."""
    recorded, acceptance, backfill = entry.recorded, entry.acceptance, entry.backfill
    loss = recorded.loss
    assert loss.id is not None
    return LossEntry.of(
        recorded,
        loss=loss.id,
        state=entry.state,
        source=loss.input,
        stage=loss.stage,
        lost=said(loss),
        rows_at_most=rows_at_most(loss),
        accepted_at=acceptance.accepted_at if acceptance else None,
        reason=acceptance.reason if acceptance else None,
        backfilled_at=backfill.backfilled_at if backfill else None,
        checkpoint=backfill.checkpoint if backfill else None,
        parts=loss,
    )


def _shown(found: Sequence[LossEntry]) -> list[RenderableType]:
    """Returns the losses for people."""
    if not found:
        return [Text("The pipeline has left out no rows of its sources.", style="bold green")]
    table = words.table("Losses", "loss", "state", "source", "stage", "rows at most", "recorded", "lost", right=("rows at most",))
    for each in found:
        rows = "unknown" if each.rows_at_most is None else words.count(each.rows_at_most)
        state = Text(each.state.value, style=_STYLES[each.state])
        table.add_row(
            each.loss, state, Text(each.source), Text(each.stage), rows, words.moment(each.recorded_at), Text(each.lost)
        )
    return [table]


def _left(count: int) -> Text:
    if not count:
        return Text("No loss is open.", style="bold green")
    return Text("1 loss is open." if count == 1 else f"{words.count(count)} losses are open.", style="yellow")
