"""Distinguishes the rows of a table that a pipeline has published from rows of others.

A commit of a publication has an app id that begins with the pipeline's uuid. Files that were only rewritten (compacted, deleted from,
updated) belong to the owner of the files that they replace. If the log no longer has the commit that added a file, its name decides: the
name of a staged file begins with a prefix of its incarnation. All other files belong to others.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.protocol.ids import PipelineUuid, SinkName, StageName, file_prefix
from spark_jobs.publication.delta_rs import OpenTable

_REWRITING = frozenset({"DELETE", "MERGE", "OPTIMIZE", "REORG", "UPDATE"})
_INSERTING = "MERGE"
"""The operation among them that also adds new rows."""


def rows_of_others(
    commits: Iterable[list[Mapping[str, Any]]], files: Mapping[str, int], pipeline: PipelineUuid, prefixes: Collection[str]
) -> int:
    """Returns the number of rows of others in a table. A file with rows of both counts fully.

    Args:
        commits: Actions of the commits that the table's log still has, oldest first.
        files: Files of the table with their numbers of rows.
        pipeline: The pipeline, whose rows are not counted.
        prefixes: Prefixes of the pipeline's staged files.
    """
    own: dict[str, bool] = {}
    rows = dict(files)
    begin = tuple(prefixes)

    def is_own(path: str) -> bool:
        return own.get(path, bool(begin) and path.rpartition("/")[2].startswith(begin))

    for actions in commits:
        operation = next((action["commitInfo"].get("operation", "") for action in actions if "commitInfo" in action), "")
        ours = any(action["txn"]["appId"].startswith(f"{pipeline}/") for action in actions if "txn" in action)
        removed = [unquote(action["remove"]["path"]) for action in actions if "remove" in action]
        derived = all(map(is_own, removed))
        if operation in _REWRITING and (ours or operation != _INSERTING):
            ours = derived and (ours or bool(removed))
        for add in (action["add"] for action in actions if "add" in action):
            path = unquote(add["path"])
            own.setdefault(path, ours or is_own(path))
            if path in rows and add.get("deletionVector"):
                rows[path] = files[path] - int(add["deletionVector"]["cardinality"])
    return sum(count for path, count in rows.items() if not is_own(path))


def own_prefixes(table: OpenTable, pipeline: PipelineUuid, stage: StageName) -> tuple[str, ...]:
    """Returns the name prefixes of all files that a stage has staged for a table in incarnations that have published."""
    return tuple(file_prefix(incarnation, stage) for incarnation in table.incarnations(pipeline))


def refuse_rows_of_others(
    table: OpenTable, pipeline: PipelineUuid, sink: SinkName, mode: SinkMode, stage: StageName, files: Mapping[str, int]
) -> None:
    """Refuses to replace the rows of a table that also has rows of others.

    Args:
        table: The table.
        pipeline: Pipeline that replaces its rows.
        sink: The sink.
        mode: Mode of the sink.
        stage: Stage of the sink.
        files: As for :func:`rows_of_others`.

    Raises:
        UnsupportedTableError: There are rows of others. The error says how many.
        StorageError: The storage fails.
    """
    if mode is SinkMode.COMPLETE:
        keep = "To keep them, give the sink another table: each checkpoint of a complete result replaces all rows of its table."
    else:
        keep = (
            "To keep them, start without --full-refresh, or with --fresh --on-rewind keep, and delete this pipeline's rows yourself "
            "(DELETE FROM)."
        )
    if rows := rows_of_others(table.commits(), files, pipeline, own_prefixes(table, pipeline, stage)):
        raise UnsupportedTableError(
            f"Sink {sink}: table {table.facts.uri} has {rows} rows that this pipeline has not published. Replacing its rows would "
            "remove them.",
            exists="Other writers have added them, or the table's log does not show the writer any more.",
            safe="Nothing was written to any table.",
            remedy=f"{keep} To lose them, empty the table first (DELETE FROM), then repeat.",
            sink=sink,
            table=table.facts.uri,
            rows=rows,
        )
