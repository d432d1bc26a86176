"""Finds inputs whose files or tables do not exist, before Spark starts. A mistyped path is refused at once, by its name.

Paths that are patterns or not on a file system of this host are left to Spark.
"""

import os
from collections.abc import Iterable

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.refusals import Mistakes
from spark_jobs.runtime.inputs.file_source import is_pattern
from spark_jobs.runtime.inputs.recorded_reads import path_on_this_host, recorded_reads
from spark_jobs.runtime.inputs.source_kind import refused_input


def check_paths(graph: Graph, parameters: BoundParameters) -> None:
    """Refuses inputs that read from a missing path of this host. Starts no Spark, writes nothing.

    Raises:
        InvalidPipelineError: Paths are missing. It names those of all inputs.
    """
    mistakes = Mistakes()
    for node in graph.inputs:
        with mistakes.noted():
            for path in _missing(recorded_reads(node, parameters).paths):
                raise refused_input(
                    node.name,
                    f"reads {path}, which does not exist",
                    "Correct the path, or write the files or the table first.",
                )
    mistakes.check()


def _missing(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        local = path_on_this_host(path)
        if local is None or is_pattern(path):
            continue
        try:
            os.stat(local)
        except (FileNotFoundError, NotADirectoryError):
            yield local
        except OSError:
            continue  # Spark reports its error
