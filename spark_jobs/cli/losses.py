"""``spark-jobs losses``: lists the rows of sources that a pipeline has left out."""

from collections.abc import Sequence
from typing import Annotated

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import LossEntry, LossesAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.losses import LedgerEntry, LossLedger, LossState
from spark_jobs.protocol.losses import rows_at_most, said

_STYLES = {LossState.OPEN: "yellow", LossState.ACCEPTED: "green", LossState.UNDONE: "dim", LossState.BACKFILLED: "green"}


def losses(home: Home, output: Annotated[Output, output_option(LossesAnswer)] = Output.TEXT) -> None:
    """List the rows of sources that the pipeline has left out, and show which of these losses are closed."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        found = tuple(entry_of(each) for each in LossLedger(files).entries())
        terminal.answer(LossesAnswer(pipeline=pipeline.name, home=files.url, losses=found), *shown(found))


def entry_of(entry: LedgerEntry) -> LossEntry:
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


def shown(found: Sequence[LossEntry]) -> list[RenderableType]:
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
