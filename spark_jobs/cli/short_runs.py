"""Predicts whether a run will be short: from the last run, or from the size of the inputs if there is no last run to go by."""

import os
from collections.abc import Iterator
from datetime import timedelta

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.source import Source, Static
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.inputs.file_source import above_patterns
from spark_jobs.runtime.inputs.recorded_reads import path_on_this_host, recorded_reads
from spark_jobs.storage.files import Files

SHORT = timedelta(minutes=2)
FEW_ROWS = 10_000_000
"""Rows in all inputs of all stages. With more rows a run takes longer without Java's second compiler: see ``docs/benchmarks.md``."""
FEW_BYTES = 50_000_000
"""Size of all inputs: some million rows in columns, fewer in text."""
FEW_FILES = 10_000
"""Files of all inputs. More of them take too long to list and to read."""


def expects_short_run(home: Files, graph: Graph, parameters: BoundParameters, options: StartOptions) -> bool:
    """Returns True if the run is likely to end before Java's second compiler has saved the time that it takes.

    A run that reads only what is new goes by the last run, and any other run by the files and tables that it reads.

    Args:
        home: The home.
        graph: The pipeline that will run.
        parameters: Its parameters.
        options: The options of the run.

    Raises:
        StorageError: The storage of the home fails.
    """
    if graph.unbounded:
        return False
    reads_old_rows = options.fresh or options.restore or options.new_sources or options.backfill or options.full_refresh
    last = None if reads_old_rows else CheckpointStore(home).head()
    return _inputs_are_small(graph, parameters) if last is None else _was_short(home, last)


def _was_short(home: Files, last: Manifest) -> bool:
    """Returns True if the last run ended in a short time, and read few rows."""
    if last.checkpoint_kind is not CheckpointKind.FINAL:
        return False
    try:
        began_at = Attempts(home).read(last.attempt).started_at
    except NotFoundError:
        return False
    rows = sum(sum(cut.input_rows.values()) for cut in last.stages.values())
    return last.completed_at - began_at <= SHORT and rows <= FEW_ROWS


def _inputs_are_small(graph: Graph, parameters: BoundParameters) -> bool:
    """Returns True if all inputs are small files and tables on this host. Files that a pattern or a table leaves out are counted, too."""
    sizes = (size for node in graph.inputs for size in _sizes_bytes(node, parameters))
    total_bytes = 0
    for files, size_bytes in enumerate(sizes, start=1):
        if size_bytes is None or files > FEW_FILES or (total_bytes := total_bytes + size_bytes) > FEW_BYTES:
            return False
    return True


def _sizes_bytes(node: Source | Static, parameters: BoundParameters) -> Iterator[int | None]:
    """Yields the size of each file that an input reads, and None for what cannot be known without Spark."""
    reads = recorded_reads(node, parameters)
    if not reads.complete:
        yield None
    for path in reads.paths:
        local = path_on_this_host(above_patterns(path))
        try:
            if local is None:
                yield None
            elif os.path.isdir(local):
                yield from _sizes_below(local)
            else:
                yield os.path.getsize(local)
        except OSError:
            yield None


def _sizes_below(directory: str) -> Iterator[int | None]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes_below(entry.path)
            else:
                yield None if entry.is_dir() else entry.stat().st_size  # links may lead in circles
