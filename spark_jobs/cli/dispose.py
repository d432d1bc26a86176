"""``spark-jobs dispose``: deletes a savepoint."""

from typing import Annotated

import typer
from rich.text import Text

from spark_jobs.checkpoint.savepoint import dispose as dispose_of
from spark_jobs.cli.answers import DisposeAnswer
from spark_jobs.cli.homes import open_home
from spark_jobs.cli.options import Savepoint
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.savepoint_use import needed_by
from spark_jobs.storage.open import open_place

Homes = Annotated[
    list[str],
    typer.Option(
        "--home", metavar="URL", help="A home that may need the savepoint. Repeat the option for each home.", show_default=False
    ),
]


def dispose(savepoint: Savepoint, home: Homes, output: Annotated[Output, output_option(DisposeAnswer)] = Output.TEXT) -> None:
    """Delete a savepoint, unless a request or a start of one of the homes needs it. Can be repeated after an interruption."""
    with command(output) as terminal:
        files = open_place(savepoint)
        users = [user for url in home for user in needed_by(open_home(url)[0], files)]
        existed = bool(files.names(""))
        dispose_of(files, users)
        done = Text(f"The savepoint {files.url} is deleted.", style="bold green")
        nothing = Text(f"There is nothing at {files.url}: it was deleted before, or its name is another.", style="yellow")
        terminal.answer(DisposeAnswer(savepoint=files.url, existed=existed), done if existed else nothing)
