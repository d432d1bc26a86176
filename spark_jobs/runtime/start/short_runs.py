"""Predicts from the last run whether a run will be short."""

from datetime import timedelta

from spark_jobs.api.graph import Graph
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.storage.files import Files

SHORT = timedelta(minutes=2)
FEW_ROWS = 10_000_000
"""Rows in all inputs of all stages. With more rows a run takes longer without Java's second compiler: see ``docs/benchmarks.md``."""


def expects_short_run(home: Files, graph: Graph, options: StartOptions) -> bool:
    """Returns True if the last run ended in a short time and read few rows, and this one will read only what is new.

    Args:
        home: The home.
        graph: The pipeline that will run.
        options: The options of the run.

    Raises:
        StorageError: The storage of the home fails.
    """
    reads_old_rows = options.fresh or options.restore or options.new_sources or options.backfill or options.full_refresh
    last = None if graph.unbounded or reads_old_rows else CheckpointStore(home).head()
    if last is None or last.checkpoint_kind is not CheckpointKind.FINAL:
        return False
    try:
        began_at = Attempts(home).read(last.attempt).started_at
    except NotFoundError:
        return False
    rows = sum(sum(cut.input_rows.values()) for cut in last.stages.values())
    return last.completed_at - began_at <= SHORT and rows <= FEW_ROWS
