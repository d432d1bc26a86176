"""Decides where stages begin that were added later: in other stages, and in sources."""

from collections.abc import Collection, Mapping

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Source
from spark_jobs.api.stage import BeginAt
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.inputs import pin_leaves
from spark_jobs.runtime.inputs.source_kinds import kind_of_known
from spark_jobs.runtime.start.source_identity import FoundSource, SettledSources


def behind_stages(before: Manifest, graph: Graph) -> dict[StageName, dict[StageName, BatchId]]:
    """Returns, for each stage that was added later, the last batch of each producer before the batches that it reads.

    A new stage reads the rows that its producers stage after the checkpoint. A stage that was added earlier keeps its beginning.
    """
    found = {name: dict(cut.begins) for name, cut in before.stages.items() if name in graph.stages}
    for stage in graph.stages.values():
        if stage.name not in before.stages:
            producers = [node.name for node in stage.streamed]
            found[stage.name] = {name: before.stages[name].channel.last for name in producers if name in before.stages}
    return {name: after for name, after in found.items() if after}


def in_sources(
    before: Manifest,
    graph: Graph,
    settled: SettledSources,
    found: Mapping[InputName, FoundSource],
    refreshed: Collection[StageName] = (),
) -> dict[StageName, dict[InputName, tuple[KnownSource, ...]]]:
    """Returns the beginning in each source for each stage that begins now.

    A stage that was added earlier keeps its beginning in a source that it has not read yet.

    Args:
        before: Checkpoint that the start goes on from.
        graph: The pipeline.
        settled: Sources that the stages read.
        found: The present sources.
        refreshed: Stages that start over. They read their sources from the beginning.

    Raises:
        InvalidPipelineError: The present end of a source cannot be found.
    """
    begins = {name: dict(cut.begins_now) for name, cut in before.stages.items() if name in graph.stages}
    for stage in graph.stages.values():
        if stage.name in before.stages or stage.name in refreshed or stage.begin is not BeginAt.NOW:
            continue
        read = {node.name for node in stage.inputs.values() if isinstance(node, Source)}
        begins[stage.name] = {
            name: tuple(
                kind_of_known(known).after(known, pin)
                for known, pin in zip(settled.sources[name], _pins(name, before, found[name]), strict=True)
            )
            for name in sorted(read - settled.renewed)
        }
    return without(settled.renewed, begins)


def without(
    renewed: Collection[InputName], begins: Mapping[StageName, Mapping[InputName, tuple[KnownSource, ...]]]
) -> dict[StageName, dict[InputName, tuple[KnownSource, ...]]]:
    """Returns the beginnings of stages without replaced sources, which are read from their beginning."""
    left = {stage: {name: known for name, known in sources.items() if name not in renewed} for stage, sources in begins.items()}
    return {stage: sources for stage, sources in left.items() if sources}


def _pins(name: InputName, before: Manifest, source: FoundSource) -> tuple[Pin, ...]:
    """Returns the end of a source in the checkpoint's round. For an unbounded or a new source, returns its present end."""
    pinned = before.inputs.get(name) if name in before.sources else None
    return pinned or pin_leaves(name, source.frame, source.leaves)
