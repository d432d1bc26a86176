"""``spark-jobs pipelines`` and ``spark-jobs savepoints``: list the pipelines and savepoints below some roots."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from spark_jobs.background import run_all
from spark_jobs.checkpoint.savepoint_list import list_savepoints
from spark_jobs.cli import words
from spark_jobs.cli.answers import PipelineEntry, PipelinesAnswer, SavepointEntry, SavepointsAnswer
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.home import open_home
from spark_jobs.control.pipeline_look import overview
from spark_jobs.home.search import Found, find_things
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.start_requests import URLS
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import check_directory, open_place

Roots = Annotated[
    list[str],
    typer.Option(
        "--root",
        metavar="URL",
        help=f"A directory with homes below it: a path, or {URLS}. Repeat the option for each.",
        show_default=False,
    ),
]
_COLOURS = {RunState.DONE: "dim", RunState.FAILED: "red"}


def pipelines(root: Roots, output: Annotated[Output, output_option(PipelinesAnswer)] = Output.TEXT) -> None:
    """List the pipelines below one or several directories: state, newest checkpoint, and reasons to look at them."""
    with command(output) as terminal:
        found = _found(root)
        entries = look_at_all([home for each in found for home in each.homes], terminal.aside)
        answer = PipelinesAnswer(roots=tuple(root), pipelines=tuple(entries), left_out=sum(each.left_out for each in found))
        terminal.answer(answer, *_pipelines_text(answer))


def savepoints(root: Roots, output: Annotated[Output, output_option(SavepointsAnswer)] = Output.TEXT) -> None:
    """List the savepoints below one or several directories, also those in homes there, newest first. Verifies no file."""
    with command(output) as terminal:
        found = _found(root)
        listed = list_savepoints(place for each in found for place in each.savepoints)
        entries = [
            SavepointEntry.of(
                each.savepoint,
                savepoint=each.url,
                pipeline=each.savepoint.pipeline_name,
                files=len(each.savepoint.files),
            )
            if each.savepoint is not None
            else SavepointEntry(savepoint=each.url, pipeline=None, problem=each.problem)
            for each in listed
        ]
        answer = SavepointsAnswer(roots=tuple(root), savepoints=tuple(entries), left_out=sum(each.left_out for each in found))
        terminal.answer(answer, *_savepoints_text(answer))


def _found(roots: Sequence[str]) -> list[Found]:
    opened = [open_place(root) for root in roots]
    for each in opened:
        check_directory(each)
    return [find_things(each) for each in opened]


def look_at_all(homes: Sequence[Files], aside: Console) -> list[PipelineEntry]:
    """Looks at many homes at once, with a progress bar. Returns the entries in order."""
    columns = (TextColumn("looking at pipelines"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal) as progress:
        task = progress.add_task("looking at pipelines", total=len(homes))

        def look(home: Files) -> PipelineEntry:
            entry = _pipeline(home)
            progress.advance(task)
            return entry

        return run_all([partial(look, home) for home in homes])


def _pipeline(home: Files) -> PipelineEntry:
    """Returns the entry of a home. A home that cannot be read does not hide the others."""
    try:
        found = overview(open_home(home.url))
    except StreamPipelineError as error:
        return PipelineEntry(home=home.url, pipeline=None, problem=error.failed)
    look = found.look
    return PipelineEntry(
        home=home.url,
        pipeline=found.name,
        state=look.state,
        at_work=look.at_work,
        run=look.attempt.run if look.attempt else None,
        attempt=look.attempt.attempt if look.attempt else None,
        checkpoint=found.head.checkpoint if found.head else None,
        checkpoint_age_s=found.checkpoint_age_s(datetime.now(UTC)),
        blocked_since=found.blocked.since if found.blocked else None,
        failed_stages=tuple(found.failed_stages),
        losses=len(found.open_losses),
        reasons=tuple(found.reasons),
    )


def _pipelines_text(answer: PipelinesAnswer) -> list[RenderableType]:
    if not answer.pipelines:
        return [f"There is no pipeline below {', '.join(answer.roots)}.", *_left_out(answer.left_out)]
    shown = words.table(
        "Pipelines", "pipeline", "state", "checkpoint", "taken", "open losses", "home", right=("checkpoint", "open losses")
    )
    for each in answer.pipelines:
        state = each.state.value if each.state else "cannot be read" if each.problem else "nothing has run"
        age_s = each.checkpoint_age_s
        shown.add_row(
            Text(each.pipeline or ""),
            Text(state, style="red" if each.problem else _COLOURS.get(each.state, "green") if each.state else ""),
            "none" if each.checkpoint is None else str(each.checkpoint),
            "" if age_s is None else words.ago(age_s),
            str(each.losses or ""),
            Text(each.home),
        )
    texts = [Text(f"{each.pipeline or each.home}: {text}", style="yellow") for each in answer.pipelines for text in _needs(each)]
    return [shown, *texts, *_left_out(answer.left_out)]


def _needs(entry: PipelineEntry) -> list[str]:
    return [entry.problem] if entry.problem else list(entry.reasons)


def _savepoints_text(answer: SavepointsAnswer) -> list[RenderableType]:
    if not answer.savepoints:
        return [f"There is no savepoint below {', '.join(answer.roots)}.", *_left_out(answer.left_out)]
    headings = ("pipeline", "checkpoint", "taken", "drained", "files", "size", "of the largest", "savepoint")
    shown = words.table("Savepoints", *headings, right=("checkpoint", "files", "size"))
    largest_bytes = max(each.size_bytes for each in answer.savepoints)
    for each in answer.savepoints:
        whole = each.pipeline is not None
        shown.add_row(
            Text(each.pipeline or ""),
            str(each.checkpoint or ""),
            words.moment(each.taken_at) if each.taken_at else Text("not whole", style="yellow"),
            words.yes(each.drained) if whole else "",
            words.count(each.files) if whole else "",
            words.size(each.size_bytes) if whole else "",
            words.bar(each.size_bytes if whole else 0, largest_bytes),
            Text(each.savepoint),
        )
    problems = [Text(f"{each.savepoint}: {each.problem}", style="yellow") for each in answer.savepoints if each.problem]
    return [shown, *problems, *_left_out(answer.left_out)]


def _left_out(count: int) -> list[Text]:
    said = f"{words.count(count)} directories were skipped: there are too many. Name a root that only contains homes."
    return [Text(said, style="yellow")] if count else []
