"""``spark-jobs verify``: checks that the files of checkpoints are unchanged."""

from collections.abc import Iterable
from typing import Annotated

from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from spark_jobs.checkpoint.named_files import NamedFiles
from spark_jobs.checkpoint.savepoint import named_by_savepoint, read_savepoint
from spark_jobs.cli import words
from spark_jobs.cli.answers import DamagedFile, VerifyAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import MaybeHome, MaybeSavepoint
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.home.layout import STATE
from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError, InvalidParameterError
from spark_jobs.publication.verification import named_by_home, still_damaged
from spark_jobs.storage.open import open_place

_OF_STATE = "Start the pipeline: it copies a file of state from another copy, or computes the state again."
_WITHOUT_A_COPY = (
    "Restore {what} from a backup: the pipeline has no other copy. Or begin with a savepoint (--restore), or "
    f"{BEGIN_ANEW}. "
    "See 'a damaged file' in docs/troubleshooting.md."
)
_OF_A_SAVEPOINT = "Restore the files from another copy of the savepoint, or use another savepoint."


def verify(
    savepoint: MaybeSavepoint = None,
    home: MaybeHome = None,
    output: Annotated[Output, output_option(VerifyAnswer)] = Output.TEXT,
) -> None:
    """Read the files of a home's checkpoints that are still needed, or of a savepoint, and compare them with the record.

    Writes nothing.
    """
    with command(output) as terminal:
        if (savepoint is None) == (home is None):
            raise InvalidParameterError(
                "verify needs exactly one of a savepoint and a home.",
                safe="Nothing was read.",
                remedy="Give the directory of a savepoint, or --home.",
            )
        if savepoint is not None:
            files = open_place(savepoint)
            pipeline = read_savepoint(files)[0].pipeline_name
            named = named_by_savepoint(files)
            damage = verified(named, terminal.aside)
        else:
            files, document = open_home(home or "")
            pipeline = document.name
            named = named_by_home(files)
            damage = verified(named, terminal.aside)
            damage = damage and still_damaged(files, damage)
        if damage:
            terminal.say(*_table(damage))
            raise _damaged(files.url, damage, _OF_A_SAVEPOINT if savepoint is not None else _remedy(files.url, damage))
        answer = VerifyAnswer(
            pipeline=pipeline,
            url=files.url,
            checkpoints=named.checkpoints,
            files=len(named.files),
            size_bytes=named.size_bytes,
        )
        terminal.answer(answer, *_text(answer))


def verified(named: NamedFiles, aside: Console) -> list[CorruptDocumentError]:
    """Reads files with a progress bar. Returns their faults."""
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal) as progress:
        task = progress.add_task("verifying", total=named.size_bytes)
        return named.verify(lambda size_bytes: progress.advance(task, size_bytes))


def _remedy(home: str, damage: Iterable[CorruptDocumentError]) -> str:
    """Returns the remedy for damaged files of a home. A start can only replace files of state."""
    of_state = {str(error.evidence["path"]).startswith(f"{home}/{STATE}/") for error in damage}
    if of_state == {True}:
        return _OF_STATE
    if of_state == {False}:
        return _WITHOUT_A_COPY.format(what="the files")
    return f"{_WITHOUT_A_COPY.format(what=f'the files that are not below {STATE}/')} {_OF_STATE}"


def _damaged(url: str, damage: list[CorruptDocumentError], remedy: str) -> CorruptDocumentError:
    found = [DamagedFile(path=str(error.evidence["path"]), problem=error.failed) for error in damage]
    count = "1 file is" if len(found) == 1 else f"{words.count(len(found))} files are"
    return CorruptDocumentError(
        f"{count} different from the record in {url}. The first: {found[0].problem}",
        exists="All other files were read and are intact.",
        safe="Nothing was changed.",
        remedy=remedy,
        path=found[0].path,
        damaged=[each.model_dump() for each in found],
    )


def _table(damage: Iterable[CorruptDocumentError]) -> list[RenderableType]:
    shown = words.table("Damaged files", "problem", "file")
    for error in damage:
        problem = "gone" if error.evidence.get("found") is None else "altered"
        shown.add_row(Text(problem, style="red"), Text(str(error.evidence["path"])))
    return [shown]


def _text(answer: VerifyAnswer) -> list[RenderableType]:
    return [
        words.facts(
            ("pipeline", answer.pipeline),
            ("checkpoints", ", ".join(map(str, answer.checkpoints)) or "none"),
            ("read", f"{words.count(answer.files)} files, {words.size(answer.size_bytes)}"),
        ),
        Text("Every file is there and unchanged.", style="bold green"),
    ]
