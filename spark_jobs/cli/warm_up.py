"""``spark-jobs warm-up``: stores the classes that every start of Spark loads, so that later starts are faster."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import WarmUpAnswer
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.spark import OutputFile, SparkOptions, SparkStart, printing_to, standing_stderr
from spark_jobs.cli.terminal import Output, command, console, output_option
from spark_jobs.protocol.errors import AccessDeniedError, MissingRequirementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs import Pipeline

_CONF = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
_END_TIMEOUT_S = 600.0
"""Time limit for the JVM to write the archive."""


def warm_up(output: Annotated[Output, output_option(WarmUpAnswer)] = Output.TEXT) -> None:
    """Make Spark start faster in this environment: store the classes that a small pipeline loads next to the installed packages.

    Run it once per host or image, and again after an upgrade of Java, Spark or Delta.
    """
    from spark_jobs.runtime.spark.class_archive import archive_path, making
    from spark_jobs.runtime.spark.session import check_java, end_jvm

    with command(output) as terminal, TemporaryDirectory(prefix="spark-jobs-") as scratch:
        archive, directory = archive_path(check_java()), Path(scratch)
        log = OutputFile(directory / "spark.log")
        progress = Progress(console(stderr=True, file=standing_stderr()), "running a small pipeline")
        with progress.shown():
            try:
                with making(archive):
                    session = SparkStart("warm-up", SparkOptions(_CONF), log).showing(progress, "running a small pipeline")()
                    with printing_to(log):
                        _write_rows(session, directory)
                        _pipeline(directory).run(spark=session, home=directory / "home")
                        progress.doing("keeping the classes")
                        end_jvm(_END_TIMEOUT_S)
            except FileNotFoundError as error:
                raise MissingRequirementError(
                    "This Java cannot store classes.", remedy="Run without it, as fast as before."
                ) from error
            except OSError as error:
                raise AccessDeniedError(
                    f"{archive.parent} cannot be written: {error.strerror}.",
                    remedy="Run it as the user who installs packages there, for example while the image is built.",
                    path=str(archive.parent),
                ) from error
        answer = WarmUpAnswer(archive=str(archive), size_bytes=archive.stat().st_size)
        kept = f"Spark's classes are kept in {archive}, {words.size(answer.size_bytes)}."
        terminal.answer(answer, Text(f"{kept} From now on it starts faster here.", no_wrap=True))


def _write_rows(session: "SparkSession", directory: Path) -> None:
    rows = session.range(5_000).selectExpr("id % 7 as page", "timestamp_seconds(id * 60) as viewed_at")
    rows.write.format("delta").save(str(directory / "views"))


def _pipeline(directory: Path) -> "Pipeline":
    """Returns a pipeline with a window, a second stage that reads its rows, and a table of each kind."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    from spark_jobs import DeltaSink, Pipeline

    pipeline = Pipeline("warm_up")

    @pipeline.source(bounded=True, event_time="viewed_at")
    def views(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(directory / "views"))

    @pipeline.stage(sink=DeltaSink(str(directory / "hourly")))
    def hourly(views: DataFrame) -> DataFrame:
        counts = views.groupBy(F.window("viewed_at", "1 hour").alias("hour"), "page").agg(F.count("*").alias("views"))
        return counts.select("page", "views", F.window_time("hour").alias("hour_end"))

    @pipeline.stage(sink=DeltaSink(str(directory / "pages"), mode="upsert", keys=["page"], sequence_by="hour_end"))
    def pages(hourly: DataFrame) -> DataFrame:
        return hourly.select("page", "hour_end")

    return pipeline
