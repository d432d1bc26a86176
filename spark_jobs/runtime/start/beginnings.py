"""Decides where stages begin that were not in a pipeline from the first round: behind other stages, and in sources."""

from collections.abc import Collection, Mapping

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Source
from spark_jobs.api.stage import BeginAt, Stage
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.inputs import pin_leaves
from spark_jobs.runtime.inputs.source_kinds import kind_of_known
from spark_jobs.runtime.start.source_identity import FoundSource, SettledSources


def behind_stages(before: Manifest, graph: Graph) -> dict[StageName, dict[StageName, BatchId]]:
    """Returns the last batch before those that a stage reads of a producer: by stage that was not there from the beginning, by producer.

    A stage that is new reads what its producers stage after the checkpoint; one that was new before goes on from where it began.
    """
    found = {name: dict(cut.begins) for name, cut in before.stages.items() if name in graph.stages}
    for stage in graph.stages.values():
        if stage.name not in before.stages:
            producers = [StageName(node.name) for node in stage.inputs.values() if isinstance(node, Stage)]
            found[stage.name] = {name: before.stages[name].channel.last for name in producers if name in before.stages}
    return {name: after for name, after in found.items() if after}


def in_sources(
    before: Manifest, graph: Graph, settled: SettledSources, found: Mapping[InputName, FoundSource]
) -> dict[StageName, dict[InputName, tuple[KnownSource, ...]]]:
    """Returns by stage that begins now, by source, where it begins.

    A stage that was new before keeps its beginning in a source of which it has read nothing.

    Args:
        before: The checkpoint that the start goes on from.
        graph: The pipeline.
        settled: What the stages read.
        found: The sources as they are now.

    Raises:
        InvalidPipelineError: Where a source ends now cannot be told.
    """
    begins = {name: dict(cut.begins_now) for name, cut in before.stages.items() if name in graph.stages}
    for stage in graph.stages.values():
        if stage.name in before.stages or stage.begin is not BeginAt.NOW:
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
    """Returns where stages begin, but for sources that are other ones now: those are read from their beginning."""
    left = {stage: {name: known for name, known in sources.items() if name not in renewed} for stage, sources in begins.items()}
    return {stage: sources for stage, sources in left.items() if sources}


def _pins(name: InputName, before: Manifest, source: FoundSource) -> tuple[Pin, ...]:
    """Returns where a source ended in the checkpoint's round; a source without an end, or a new one, ends now."""
    pinned = before.inputs.get(name) if name in before.sources else None
    return pinned or pin_leaves(name, source.frame, source.leaves)
