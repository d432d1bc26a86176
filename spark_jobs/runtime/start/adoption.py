"""Lets a source continue an old, plain Spark query: refuses unsuitable ones, and makes that query's last batch a stage's first.

The stage gets two batches that were never run, both with the old offsets. Two are necessary because Spark reads the last batch from a
source again when a query starts: after one batch that would be everything from the source's beginning, after two it is nothing.
"""

from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import suggestion
from spark_jobs.api.source import Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import RoundDocument
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.runtime.inputs.old_query import batches_since, format_of, last_offsets, refused
from spark_jobs.runtime.inputs.source_kind import OwnLog
from spark_jobs.runtime.inputs.source_kinds import adopted_kind
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.session import offset_log_header
from spark_jobs.runtime.spark.spark_log import OFFSETS_VERSION, OffsetEntry
from spark_jobs.runtime.staged.private_log import StagedBatch
from spark_jobs.runtime.stages.planned import PlannedStage
from spark_jobs.runtime.stages.stage import StageRun

_ADOPTED_BATCHES = (BatchId(0), BatchId(1))


def old_offsets(graph: Graph, directories: Mapping[InputName, str]) -> dict[InputName, AdoptedOffsets]:
    """Returns the last offsets of the old queries by source, after all checks that do not need Spark.

    Args:
        graph: The pipeline.
        directories: Path or URL of the old query's checkpoint directory, by source.

    Raises:
        InvalidParameterError: A source is not one of the pipeline's, is read together with streams that adopt nothing, or its query's
            checkpoint cannot be adopted. Nothing was written.
    """
    for name in directories:
        if name in graph.statics:
            raise refused(name, "it is a static input, which is read again in every round", "Leave it out.")
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


def check_stages(
    graph: Graph, spark: SparkSession, planned: Mapping[StageName, PlannedStage], adopted: Mapping[InputName, AdoptedOffsets]
) -> None:
    """Checks the plans of the stages that read ``adopted``, directly or through other stages. Writes nothing.

    Raises:
        InvalidParameterError: A source reads something else than its old query, or a stage keeps state, which would lack earlier rows.
    """
    reached: set[str] = set(adopted)
    for stage in graph.stages.values():
        if reached.isdisjoint(node.name for node in stage.inputs.values()):
            continue
        reached.add(stage.name)
        plans, leaves = planned[stage.name], list[int]()
        for argument, node in stage.inputs.items():
            name = InputName(node.name)
            if name in adopted:
                leaf = _only_stream(name, plans.inputs[argument])
                _check_same_input(name, adopted[name], leaf, spark)
                leaves.append(leaf.identity)
        _check_stateless(stage, plans.frame, next(iter(adopted)))
        if leaves and sorted(leaf.identity for leaf in plan.streaming_leaves(plans.frame)) != sorted(leaves):
            direct = sorted(node.name for node in stage.inputs.values() if node.name in adopted)
            raise refused(
                InputName(direct[0]),
                f"stage '{stage.name}' does not read each of its streams exactly once",
                "Use each argument once. Put a second use into another stage.",
                stage=stage.name,
            )


def _only_stream(name: InputName, frame: DataFrame) -> plan.Leaf:
    found = plan.streaming_leaves(frame)
    if len(found) != 1:
        raise refused(name, f"it reads {len(found)} streams, but its old query read one", "Declare a source for each.")
    return found[0]


def adopt_offsets(stage: StageRun, round_document: RoundDocument) -> None:
    """Lets a stage begin at the end of its sources' old queries, if it adopts any, before its query first starts. Idempotent."""
    log = stage.spark_log
    if not stage.adopted or log.last_commit() >= _ADOPTED_BATCHES[-1]:
        return
    log.begin(str(uuid5(NAMESPACE_URL, stage.checkpoint_path)))
    names = {adopted.checkpoint: name for name, adopted in round_document.adopted.items()}
    lines = []
    for number, adopted in enumerate(stage.adopted):
        name, own_log = names[adopted.checkpoint], OwnLog(log.files, f"{log.directory}/sources/{number}")
        lines.append(adopted_kind(name, adopted).begin_adopted(name, adopted, own_log))
    header = offset_log_header(stage.frame.sparkSession, int(round_document.begun_at.timestamp() * 1_000))
    for batch in _ADOPTED_BATCHES[log.last_commit() + 1 :]:
        if log.last_offsets() < batch:
            log.plan(batch, OffsetEntry(OFFSETS_VERSION, header, tuple(lines)))
        if stage.log.read(batch) is None:
            stage.log.append(StagedBatch(batch, offsets="", rows=0, late_rows=0, newest_event_ms={}, adds=()))
        log.commit(batch)


def refuse_moved(adopted: Mapping[InputName, AdoptedOffsets]) -> None:
    """Refuses a checkpoint with rows that a running old query has written, too.

    Raises:
        RejectedError: An old query has gone on since its offsets were adopted.
    """
    for name, offsets in adopted.items():
        if batches := batches_since(offsets):
            raise RejectedError(
                f"The query in {offsets.checkpoint} has gone on by {batches} {'batch' if batches == 1 else 'batches'} since source "
                f"'{name}' adopted its offsets. Rows would be written twice.",
                safe="Nothing was published.",
                remedy="Stop the old query, let it end, and start from the beginning: --fresh with --adopt-offsets.",
                source=name,
                batches=batches,
            )


def _check_same_input(name: InputName, adopted: AdoptedOffsets, leaf: plan.Leaf, spark: SparkSession) -> None:
    kind = adopted_kind(name, adopted)
    if not kind.reads(leaf):
        read = {"delta": "a Delta table", "files": "files"}[format_of(name, adopted)]
        raise refused(
            name,
            f"it reads {leaf.format}, but the query in {adopted.checkpoint} read {read}",
            "Give the checkpoint directory of the query that read this source.",
            path=adopted.checkpoint,
        )
    kind.check_adopted(name, adopted, leaf, spark)


def _check_stateless(stage: Stage, frame: DataFrame, source: InputName) -> None:
    operators = plan.operators_with_memory(frame)
    if operators:
        raise refused(
            source,
            f"stage '{stage.name}' depends on earlier rows ({', '.join(operators)}), but those before the offsets are not read again",
            "Begin this source from its beginning, or put the stage into another pipeline that reads the sink's table.",
            stage=stage.name,
            operators=operators,
        )
