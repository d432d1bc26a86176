"""``spark-jobs publish``: makes staged checkpoints public, without a JVM if possible."""

from contextlib import nullcontext
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.api.refusals import Place
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import PublishAnswer
from spark_jobs.cli.homes import Publications, open_home
from spark_jobs.cli.inspect import Checkpoint
from spark_jobs.cli.options import Home, WorkRoot
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.spark import OutputFile, SparkOptions, SparkStart, given_settings, standing_stderr
from spark_jobs.cli.terminal import Output, command, console, output_option
from spark_jobs.home.layout import SPARK_LOG
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import CheckpointId, RequestId, SinkName
from spark_jobs.publication.pending import chosen_manifest
from spark_jobs.publication.publisher import publish as make_public
from spark_jobs.publication.requests import answering
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import local_path


def publish(
    home: Home,
    checkpoint: Checkpoint = None,
    sink: Annotated[
        list[str] | None, typer.Option("--sink", metavar="NAME", help="Only this sink; repeat the option for more.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the Spark that is started.")] = None,
    driver_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of that Spark, such as 4g.")] = None,
    work_root: WorkRoot = None,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Publish for a request of an Airflow task, and answer it; without --checkpoint and --sink."
        ),
    ] = None,
    output: Annotated[Output, output_option(PublishAnswer)] = Output.TEXT,
) -> None:
    """Publish a checkpoint and all earlier ones. Starts Spark only if a sink needs it.

    Rows that are public already stay. The command can be repeated at any time, also while somebody else publishes.
    """
    with command(output) as terminal:
        if request is not None and (checkpoint is not None or sink):
            raise InvalidParameterError(
                "--request cannot be combined with --checkpoint or --sink.",
                remedy="Omit them: the request names the checkpoint, and every sink is published.",
            )
        files, pipeline = open_home(home, work_root)
        given = nullcontext(None if checkpoint is None else CheckpointId(checkpoint))
        with given if request is None else answering(files, RequestId(request), terminal.mask) as number:
            manifest = chosen_manifest(CheckpointStore(files), number)
            wanted = [SinkName(name) for name in sink] if sink else list(manifest.sinks)
            public = Publications()
            lacking = [n for n in wanted if n in manifest.sinks and not public.published(manifest.sinks[n], manifest.checkpoint)]
            place = Place(pipeline.name, "option", "--conf")
            options = SparkOptions(given_settings(place, conf), driver_memory=driver_memory)
            spark = SparkStart(pipeline.name, options, OutputFile(local_path(files, SPARK_LOG)))
            doing = f"publishing checkpoint {manifest.checkpoint} of {pipeline.name}"
            progress = Progress(console(stderr=True, file=standing_stderr()), doing)
            with progress.shown():
                try:
                    results = make_public(
                        files, manifest.checkpoint, sinks=wanted, publishers=Publishers(spark.showing(progress, doing))
                    )
                finally:
                    spark.stop()
        answer = PublishAnswer(
            pipeline=pipeline.name,
            home=files.url,
            checkpoint=manifest.checkpoint,
            sinks=results,
            newly_published=[name for name in results if name in lacking],
        )
        terminal.answer(answer, *_text(answer))


def _text(answer: PublishAnswer) -> list[RenderableType]:
    if not answer.sinks:
        return [f"Checkpoint {answer.checkpoint} has no sink."]
    new = len(answer.newly_published)
    done = f"published into {new} of {len(answer.sinks)} sinks" if new else "was public already"
    headings = ("sink", "checkpoint", "Delta version", words.ROWS_OF_ROUND, "published", "table")
    made = words.table("", *headings, right=("checkpoint", words.ROWS_OF_ROUND))
    for name, result in answer.sinks.items():
        news = "now" if name in answer.newly_published else "before"
        rows, version = words.count(result.rows), words.version(result.version)
        made.add_row(Text(name), str(result.checkpoint), version, rows, news, Text(result.table))
    return [Text(f"Checkpoint {answer.checkpoint} of {answer.pipeline} {done}.", style="bold green"), made]
