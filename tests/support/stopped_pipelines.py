"""Pipelines that are stopped with a savepoint and restored."""

from collections.abc import Callable
from pathlib import Path

from spark_jobs import Pipeline
from spark_jobs.protocol.documents import Manifest, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.support.command_line import document, spark_jobs
from tests.support.growing_table import Events
from tests.support.running import Running


def restored(directory: Path | str, *, keep: bool = False, **said: bool) -> StartOptions:
    url = open_place(str(directory)).url
    on_rewind = OnRewind.KEEP if keep else OnRewind.REFUSE
    return StartOptions(restore=RestoreFrom(savepoint=url, **said), on_rewind=on_rewind)


def has_staged(running: Running, stage: str, rows: int) -> Callable[[], object]:
    return lambda: running.status and running.status.stages[StageName(stage)].rows_in >= rows


def stopped(
    site: Site, pipeline: Pipeline, events: Events, directory: Path | str, *options: object, publish: Publish | None = None
) -> Manifest:
    """Runs until all rows are staged, and stops with a savepoint in ``directory``. Returns its checkpoint."""
    with Running(site.spark, pipeline, site.place, options=StartOptions(publish=publish)) as running:
        running.until(has_staged(running, "copied", events.rows))
        found = document(spark_jobs("stop", "--home", site.place, "--target", directory, "--output", "json", *options))
        running.stopped()
    assert found["savepoint"] == open_place(str(directory)).url
    return running.head()


def refused(site: Site, pipeline: Pipeline, home: Path | str, options: StartOptions) -> StreamPipelineError:
    with Running(site.spark, pipeline, home, options=options) as running:
        error = running.ends()
    assert isinstance(error, StreamPipelineError)
    return error
