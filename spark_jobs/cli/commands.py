"""All commands of ``spark-jobs``."""

from typing import Annotated

import typer

from spark_jobs import __version__
from spark_jobs.cli.backfill import backfill
from spark_jobs.cli.cancel import cancel
from spark_jobs.cli.checkpoints import checkpoints
from spark_jobs.cli.dispose import dispose
from spark_jobs.cli.inspect import inspect
from spark_jobs.cli.losses import accept, losses
from spark_jobs.cli.pipelines import pipelines, savepoints
from spark_jobs.cli.publish import publish
from spark_jobs.cli.requests import checkpoint, savepoint, stop
from spark_jobs.cli.run import run
from spark_jobs.cli.schema import schema
from spark_jobs.cli.status import status
from spark_jobs.cli.validate import validate
from spark_jobs.cli.verify import verify
from spark_jobs.cli.warm_up import warm_up

EXIT_CODES = "Exit codes: 0 done, 2 refused, 3 failed and can be resumed, 4 outcome unknown, 130 interrupted, 141 no reader."

app = typer.Typer(
    name="spark-jobs",
    help=f"Flink's checkpoint semantics for Spark Structured Streaming and Delta Lake. {EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run,
    pipelines,
    status,
    checkpoint,
    savepoint,
    stop,
    cancel,
    checkpoints,
    inspect,
    losses,
    accept,
    backfill,
    savepoints,
    verify,
    dispose,
    publish,
    validate,
    schema,
    warm_up,
):
    app.command()(command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spark-jobs {__version__}")
        raise typer.Exit


@app.callback()
def spark_jobs(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version, and do nothing else.")
    ] = False,
) -> None:
    # no docstring: it would replace the help text of the app
    pass
