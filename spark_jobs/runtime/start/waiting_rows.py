"""Compares what stages return now with the columns of the rows that earlier code has staged and their readers have not consumed.

A reader sees such rows with the columns of today. Nothing tells which of the earlier columns a new one was: it would be null in them. Null
is right only for a column that a source's table has gained since the rows were read.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from spark_jobs.api.graph import Graph
from spark_jobs.api.stage import Stage
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
    """Rows that a stage has staged and a stage that reads it has not consumed."""

    rows: int
    schema: Mapping[str, Any]
    """The columns that the stage returned, as Delta writes a schema."""


Waiting = Mapping[StageName, WaitingRows]


def waiting_in_checkpoint(manifest: Manifest, graph: Graph) -> Waiting:
    """Returns the rows that wait at a checkpoint, by the stage that has staged them."""
    return {
        name: WaitingRows(cut.channel.in_flight_rows, json.loads(cut.channel.metadata["schemaString"]))
        for name, cut in manifest.stages.items()
        if cut.channel.in_flight_rows and any(reader in manifest.stages for reader in _readers(graph, name))
    }


def waiting_in_work(work: Files, graph: Graph, begins: Mapping[StageName, Mapping[StageName, BatchId]]) -> Waiting:
    """Returns the rows that wait in a work directory whose stages do not run, by the stage that has staged them.

    Args:
        work: The work directory.
        graph: The pipeline.
        begins: By stage that begins later than the stages that it reads, by those: the last batch before those that it reads.
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

    A table that has also lost some may have renamed them: it counts as one that has gained none.
    """
    gained = set[str]()
    for name, streams in now.items():
        for old, new in zip(before.get(name, ()), streams, strict=False):
            had, has = _table_columns(old), _table_columns(new)
            if had and had <= has:
                gained |= has - had
    return frozenset(gained)


def check_waiting(returned: Mapping[StageName, StructType], waiting: Waiting, gained: Collection[str]) -> None:
    """Refuses code that returns columns which waiting rows lack.

    Args:
        returned: By stage the columns that it returns now.
        waiting: The rows that wait.
        gained: Columns that may be null in them: see :func:`gained_columns`.

    Raises:
        RejectedError: A stage returns such columns. Nothing was changed.
    """
    for name, rows in waiting.items():
        if name not in returned:
            continue
        before, now = set(_paths(rows.schema)), dict.fromkeys(_paths(json.loads(returned[name].json())))
        if lacking := [path for path in now if path not in before and path not in gained]:
            raise RejectedError(
                f"Stage '{name}' returns {', '.join(lacking)}, which {rows.rows} rows lack that its earlier code has staged and that wait "
                "for the stages that read it: there the values would be null.",
                exists=f"The rows have {', '.join(sorted(before))}.",
                safe="Nothing was changed.",
                remedy="Run the earlier code until they are consumed: it finishes the round, or is stopped with aligned checkpoints. "
                f"Then run the changed code. Or let the stage return the columns that it returned before. Or {BEGIN_ANEW}.",
                stage=name,
                rows=rows.rows,
                columns=lacking,
            )


def _table_columns(known: KnownSource) -> set[str]:
    shape = known.shape if isinstance(known, KnownDelta) else None
    return set(_paths(json.loads(shape.table_schema))) if shape else set()


def _readers(graph: Graph, producer: StageName) -> list[StageName]:
    return [
        stage.name
        for stage in graph.stages.values()
        if any(isinstance(node, Stage) and node.name == producer for node in stage.inputs.values())
    ]


def _consumed(work: Files, reader: StageName, log: PrivateLog, begins: BatchId) -> BatchId:
    """Returns the last batch of a log of which a reader has nothing left in any of its streams."""
    spark_log = SparkLog(work, checkpoint_directory(reader))
    last = spark_log.last_commit()
    lines = spark_log.offsets(last).sources if last != NO_BATCH else ()
    positions = [
        position
        for line in lines
        if line != NO_OFFSET and json.loads(line).get("reservoirId") == log.table_id and (position := channel_position(line))
    ]
    return min((BatchId(position.version - 2) for position in positions), default=begins)


def _paths(kind: Any, path: str = "") -> Iterator[str]:
    """Yields the names of columns and of fields inside them; two that differ only in case are one."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields", ()):
        name = f"{path}{field['name']}".casefold()
        yield name
        yield from _paths(field["type"], f"{name}.")
    for part, inside in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        if part in kind:
            yield from _paths(kind[part], f"{path}{inside}.")
