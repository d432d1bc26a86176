"""Lets a source go on where an old, plain Spark query stopped: refuses what cannot, and makes that query's last batch a stage's first.

The stage gets two batches that were never run, both with the old offsets. Two, because Spark asks a source for the last batch again when
a query starts: after one batch that would be everything from the source's beginning, after two it is nothing.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.functions import PARAMS
from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import suggestion
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import RoundDocument
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.runtime.inputs.bounds import FileSourceLog
from spark_jobs.runtime.inputs.inputs import KAFKA, source_frame, static_frame
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.session import offset_log_header, qualified_path
from spark_jobs.runtime.spark.spark_log import OFFSETS_VERSION, OffsetEntry
from spark_jobs.runtime.staged.private_log import StagedBatch
from spark_jobs.runtime.stages.build import call_stage
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.start.old_query import batches_since, files_read, kind_of, last_offsets, refused

_ADOPTED_BATCHES = (BatchId(0), BatchId(1))
_PATTERN = re.compile(r"(^|/)[^/]*[*?\[{\\].*", re.DOTALL)


def old_offsets(graph: Graph, directories: Mapping[InputName, str]) -> dict[InputName, AdoptedOffsets]:
    """Returns where the old queries stopped, by source, after every check that needs no Spark.

    Args:
        graph: The pipeline.
        directories: By source the checkpoint directory of its old query.

    Raises:
        InvalidParameterError: A source is not one of the pipeline's, is read beside streams that adopt nothing, or what its query has left
            cannot be adopted. Nothing was written.
    """
    for name in directories:
        if name in graph.statics:
            raise refused(name, "it is a static input, which is read anew in every round", "Leave it out.")
        if name not in graph.sources:
            raise refused(name, f"pipeline '{graph.pipeline}' has no source of that name", suggestion(name, graph.sources))
    for stage in graph.stages.values():
        streams = [node.name for node in stage.inputs.values() if not isinstance(node, Static)]
        adopting = [InputName(name) for name in streams if name in directories]
        if adopting and len(adopting) < len(streams):
            others = ", ".join(sorted(set(streams) - set(adopting)))
            raise refused(
                adopting[0],
                f"stage '{stage.name}' reads it together with {others}, which adopts nothing",
                "Adopt offsets for all sources of the stage, or read the others in a stage of their own.",
                stage=stage.name,
            )
    return {name: last_offsets(name, directory) for name, directory in directories.items()}


def check_stages(graph: Graph, spark: SparkSession, params: Any, adopted: Mapping[InputName, AdoptedOffsets]) -> None:
    """Calls the functions of what reads ``adopted``, directly or through other stages, and checks what they return. Writes nothing.

    Raises:
        InvalidParameterError: A source reads something else than its old query, or a stage keeps state, which would lack the rows before.
        InvalidPipelineError: A function returns something that cannot run.
    """
    frames = _Frames(graph, spark, params)
    leaves: dict[str, int] = {}
    for name, offsets in adopted.items():
        found = plan.streaming_leaves(frames.of(name))
        if len(found) != 1:
            raise refused(name, f"it reads {len(found)} streams, and its old query read one", "Declare a source for each.")
        (leaf,) = found
        leaves[name] = leaf.identity
        _check_same_input(name, offsets, leaf, spark)
    reached: set[str] = set(adopted)
    for stage in graph.stages.values():
        inputs = {str(node.name) for node in stage.inputs.values()}
        if not inputs & reached:
            continue
        reached.add(stage.name)
        frame = frames.of(stage.name)
        _check_stateless(stage, frame, next(iter(adopted)))
        direct = sorted(name for name in inputs if name in adopted)
        if direct and sorted(leaf.identity for leaf in plan.streaming_leaves(frame)) != sorted(leaves[name] for name in direct):
            raise refused(
                InputName(direct[0]),
                f"stage '{stage.name}' does not read each of its streams exactly once",
                "Use each argument once; a second use is a stage of its own.",
                stage=stage.name,
            )


def adopt_offsets(stage: StageRun, round_document: RoundDocument) -> None:
    """Lets a stage begin where the old queries of its sources stopped, if it adopts any; before its query first starts. Idempotent."""
    log = stage.spark_log
    if not stage.adopted or log.last_commit() >= _ADOPTED_BATCHES[-1]:
        return
    log.begin(str(uuid5(NAMESPACE_URL, stage.checkpoint_path)))
    names = {adopted.checkpoint: name for name, adopted in round_document.adopted.items()}
    lines = tuple(
        _begin_source(names[adopted.checkpoint], adopted, FileSourceLog(log.files, f"{log.directory}/sources/{number}"))
        for number, adopted in enumerate(stage.adopted)
    )
    header = offset_log_header(stage.frame.sparkSession, int(round_document.begun_at.timestamp() * 1_000))
    for batch in _ADOPTED_BATCHES[log.last_commit() + 1 :]:
        if log.last_offsets() < batch:
            log.plan(batch, OffsetEntry(OFFSETS_VERSION, header, lines))
        if stage.log.read(batch) is None:
            stage.log.append(StagedBatch(batch, offsets="", rows=0, late_rows=0, newest_event_ms={}, adds=()))
        log.commit(batch)


def refuse_moved(adopted: Mapping[InputName, AdoptedOffsets]) -> None:
    """Refuses a checkpoint of rows that an old query, which was not stopped, has written as well.

    Raises:
        RejectedError: An old query has gone on since its offsets were adopted.
    """
    for name, offsets in adopted.items():
        if batches := batches_since(offsets):
            raise RejectedError(
                f"The query in {offsets.checkpoint} has gone on by {batches} {'batch' if batches == 1 else 'batches'} since source "
                f"'{name}' adopted its offsets, so that rows would be written twice.",
                safe="Nothing was published.",
                remedy="Stop the old query, let it end, and begin anew: --fresh with --adopt-offsets.",
                source=name,
                batches=batches,
            )


class _Frames:
    """The frames of a pipeline whose stages read each other directly, without channels: their plans are looked at."""

    def __init__(self, graph: Graph, spark: SparkSession, params: Any) -> None:
        self._spark, self._params = spark, params
        nodes: list[Source | Static | Stage] = [*graph.sources.values(), *graph.statics.values(), *graph.stages.values()]
        self._nodes = {str(node.name): node for node in nodes}
        self._known: dict[str, DataFrame] = {}

    def of(self, name: str) -> DataFrame:
        if name not in self._known:
            self._known[name] = self._call(self._nodes[name])
        return self._known[name]

    def _call(self, node: Source | Static | Stage) -> DataFrame:
        if isinstance(node, Static):
            return static_frame(node, self._spark, self._params, None)[0]
        if isinstance(node, Source):
            frame = source_frame(node, self._spark, self._params)
        else:
            frame = call_stage(
                node, {argument: self.of(part.name) for argument, part in node.inputs.items()} | {PARAMS: self._params}
            )
        return frame.withWatermark(node.event_time, "0 seconds") if node.event_time else frame


def _check_same_input(name: InputName, adopted: AdoptedOffsets, leaf: plan.Leaf, spark: SparkSession) -> None:
    kind, path, reads = kind_of(name, adopted), leaf.options.get("path", ""), leaf.format.lower()
    if reads == KAFKA or (kind == "delta") != (reads == "delta"):
        raise refused(
            name,
            f"it reads {leaf.format}, and the query in {adopted.checkpoint} read {'a Delta table' if kind == 'delta' else 'files'}",
            "Give the checkpoint directory of the query that read this source.",
            path=adopted.checkpoint,
        )
    if kind == "delta":
        table, expected = DeltaJvm(spark).snapshot(path)[1]["id"], json.loads(adopted.offset)["reservoirId"]
        if table != expected:
            raise refused(
                name,
                f"the table at {path} is not the one that the query in {adopted.checkpoint} read",
                "Give the checkpoint directory of the query that read this table; a table that was made anew has no offsets to adopt.",
                path=path,
                expected=expected,
                found=table,
            )
        return
    root = qualified_path(spark, _PATTERN.sub("", path) or ".").rstrip("/")
    foreign = [
        file["path"] for file in files_read(name, adopted) if file["path"] != root and not file["path"].startswith(f"{root}/")
    ]
    if foreign:
        raise refused(
            name,
            f"it reads {path}, and the query in {adopted.checkpoint} has read {foreign[0]}, which is not there",
            "Give the checkpoint directory of the query that read these files, and the path as it was given there.",
            path=path,
            found=foreign[0],
        )


def _check_stateless(stage: Stage, frame: DataFrame, source: InputName) -> None:
    operators = plan.operators_with_memory(frame)
    if operators:
        raise refused(
            source,
            f"stage '{stage.name}' depends on earlier rows ({', '.join(operators)}), and those before the offsets are not read again",
            "Begin this source from its beginning, or put the stage into a pipeline of its own that reads the sink's table.",
            stage=stage.name,
            operators=operators,
        )


def _begin_source(name: InputName, adopted: AdoptedOffsets, log: FileSourceLog) -> str:
    """Returns the line of a source in the adopted batches. For files, also writes the log of those that were read, as its first entry."""
    if kind_of(name, adopted) == "delta":
        return adopted.offset
    log.rewrite(0, [entry | {"batchId": 0} for entry in files_read(name, adopted)])
    return json.dumps({"logOffset": 0})
