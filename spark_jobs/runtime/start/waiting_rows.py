"""Compares the present columns of stages with those of rows that earlier code has staged and that their readers have not read.

A reader sees such rows with the present columns. The earlier name of a new column is unknown, so it would be null in them. Null is only
correct for a column that a source's table has gained since the rows were read.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from spark_jobs.api.graph import Graph
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.known_sources import KnownDelta, KnownSource
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_bound import channel_position
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.start.source_identity import Sources
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class WaitingRows:
    """Staged rows of a stage that a downstream stage has not read."""

    rows: int
    schema: Mapping[str, Any]
    """The columns that the stage returned, in Delta's JSON."""


def waiting_in_checkpoint(manifest: Manifest, graph: Graph) -> Mapping[StageName, WaitingRows]:
    """Returns the waiting rows at a checkpoint, by the stage that has staged them."""
    return {
        name: WaitingRows(cut.channel.in_flight_rows, json.loads(cut.channel.metadata["schemaString"]))
        for name, cut in manifest.stages.items()
        if cut.channel.in_flight_rows and any(reader in manifest.stages for reader in _readers(graph, name))
    }


def waiting_in_work(
    work: Files, graph: Graph, begins: Mapping[StageName, Mapping[StageName, BatchId]]
) -> Mapping[StageName, WaitingRows]:
    """Returns the waiting rows in a work directory without running stages, by the stage that has staged them.

    Args:
        work: The work directory.
        graph: The pipeline.
        begins: For each stage that was added later: the last batch of each producer before the batches that it reads.
    """
    found = {}
    for name in graph.stages:
        log = PrivateLog(work, log_directory(name), "")
        if not log.exists():
            continue
        first = {reader: begins.get(reader, {}).get(name, NO_BATCH) for reader in _readers(graph, name)}
        left = [log.amount_after(_consumed(work, reader, log, begin)).rows for reader, begin in first.items()]
        if rows := max(left, default=0):
            found[name] = WaitingRows(rows, json.loads(log.identity().metadata["schemaString"]))
    return found


def gained_columns(before: Sources, now: Sources) -> frozenset[str]:
    """Returns the columns and fields that source tables have gained.

    A table that has also lost columns may have renamed them, so it counts as having gained none.
    """
    gained = set[str]()
    for name, streams in now.items():
        for old, new in zip(before.get(name, ()), streams, strict=False):
            had, has = _table_columns(old), _table_columns(new)
            if had and had <= has:
                gained |= has - had
    return frozenset(gained)


def check_waiting(
    returned: Mapping[StageName, StructType], waiting: Mapping[StageName, WaitingRows], gained: Collection[str]
) -> None:
    """Refuses code that returns columns that waiting rows lack.

    Args:
        returned: Present columns by stage.
        waiting: Mapping[StageName, WaitingRows] rows.
        gained: Columns that may be null in them; see :func:`gained_columns`.

    Raises:
        RejectedError: A stage returns such columns. Nothing was changed.
    """
    for name, rows in waiting.items():
        if name not in returned:
            continue
        before, now = set(_paths(rows.schema)), dict.fromkeys(_paths(json.loads(returned[name].json())))
        if lacking := [path for path in now if path not in before and path not in gained]:
            raise RejectedError(
                f"Stage '{name}' returns {', '.join(lacking)}, which {rows.rows} waiting rows of its earlier code lack. "
                "Its readers would get null for these columns.",
                exists=f"The rows have {', '.join(sorted(before))}.",
                remedy="Run the earlier code until they are read: let it finish the round, or stop it with aligned checkpoints. "
                f"Then run the changed code. Or let the stage return its earlier columns. Or {BEGIN_ANEW}.",
                stage=name,
                rows=rows.rows,
                columns=lacking,
            )


def _table_columns(known: KnownSource) -> set[str]:
    shape = known.shape if isinstance(known, KnownDelta) else None
    return set(_paths(json.loads(shape.table_schema))) if shape else set()


def _readers(graph: Graph, producer: StageName) -> list[StageName]:
    return [stage.name for stage in graph.stages.values() if any(node.name == producer for node in stage.streamed)]


def _consumed(work: Files, reader: StageName, log: PrivateLog, begins: BatchId) -> BatchId:
    """Returns the last batch of a log that a reader has read completely in all its streams."""
    spark_log = SparkLog(work, checkpoint_directory(reader))
    last = spark_log.last_commit()
    lines = spark_log.offsets(last).sources if last != NO_BATCH else ()
    positions = [
        position
        for line in lines
        if line != NO_OFFSET and json.loads(line).get("reservoirId") == log.table_id and (position := channel_position(line))
    ]
    return min((position.last_whole_batch for position in positions), default=begins)


def _paths(kind: Any, path: str = "") -> Iterator[str]:
    """Yields the names of columns and nested fields. Names that differ only in case are equal."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields", ()):
        name = f"{path}{field['name']}".casefold()
        yield name
        yield from _paths(field["type"], f"{name}.")
    for part, inside in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        if part in kind:
            yield from _paths(kind[part], f"{path}{inside}.")
