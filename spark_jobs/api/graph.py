"""The static graph of a pipeline: the checks that need more than one part, and the description that later starts compare with."""

import graphlib
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel

from spark_jobs.api.address import TableAddress
from spark_jobs.api.clocked_stages import is_clocked, with_clocks
from spark_jobs.api.functions import PARAMS, arguments
from spark_jobs.api.parameters import BoundParameters, public_fields
from spark_jobs.api.refusals import Mistakes, Place, suggestion
from spark_jobs.api.restarts import RESTART_OF_UNBOUNDED, OnStageFailure
from spark_jobs.api.shared import Declaration, with_sharing_stages
from spark_jobs.api.sink import Sink, check_distinct
from spark_jobs.api.sorted_stages import with_sorting_stages
from spark_jobs.api.source import OnGone, Source, Static
from spark_jobs.api.stage import DeclaredStage, OutputMode, Stage
from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.documents import OnEnd, Publish
from spark_jobs.protocol.ids import InputName, PipelineName, SinkName, StageName
from spark_jobs.protocol.restart_settings import RestartSettings

K = TypeVar("K", Source, Static, DeclaredStage)


Reads = Mapping[StageName, tuple[tuple[StageName, ...], tuple[InputName, ...]]]
"""For each stage, the stages and the sources whose rows it reads as streams."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A checked pipeline. Stages are in topological order, then in the order of declaration; all other mappings in that of declaration."""

    pipeline: PipelineName
    on_end: OnEnd
    conf: Mapping[str, str]
    """Spark settings of the application."""
    checkpointing: Checkpointing
    restart: RestartSettings | None
    """The restart settings. None: a failure ends the run."""
    on_stage_failure: OnStageFailure
    sources: Mapping[InputName, Source]
    statics: Mapping[InputName, Static]
    stages: Mapping[StageName, Stage]
    mistaken: frozenset[str] = frozenset()
    """Parts whose declaration has a mistake. They are in the graph without their options: only their functions can be inspected."""

    @property
    def inputs(self) -> tuple[Source | Static, ...]:
        """The sources, then the static tables."""
        return (*self.sources.values(), *self.statics.values())

    @property
    def unbounded(self) -> bool:
        """True if an input has no end. Such a pipeline runs until it is stopped."""
        return any(not source.bounded for source in self.sources.values())

    @property
    def sinks(self) -> Mapping[SinkName, Sink]:
        """The sinks, in the order of their stages."""
        return {stage.sink.name: stage.sink for stage in self.stages.values() if stage.sink}

    def tables(self, parameters: BoundParameters) -> dict[SinkName, TableAddress]:
        """Returns the address of each sink's table as the user wrote it. Paths have no superfluous slashes.

        Raises:
            InvalidPipelineError: A value cannot be part of a path, or two sinks share a table.
        """
        public = parameters.public()
        tables = {sink: sink.table(public) for sink in self.sinks.values()}
        check_distinct(tables)
        return {sink.name: table for sink, table in tables.items()}

    def archives(self, parameters: BoundParameters) -> dict[InputName, str]:
        """Returns the archive directory of each source that archives its files.

        Raises:
            InvalidPipelineError: A value cannot be part of a path.
        """
        public, declared = parameters.public(), self.sources.items()
        places = {name: Place(self.pipeline, "source", name) for name, _ in declared}
        return {name: str(source.archive.filled(places[name], public)) for name, source in declared if source.archive}

    def describe(self) -> dict[str, Any]:
        """Returns the properties that decide whether state and tables of an earlier run fit, as JSON values.

        The same declaration gives the same values. They leave out everything that may change between two runs: ``on_end``, publication,
        checkpoints, restarts, ``on_stage_failure``, ``on_gone``, ``tolerate``, rate limits, Spark settings and the bodies of functions.
        """
        return {
            "sources": {
                name: {
                    "bounded": source.bounded,
                    "event_time": source.event_time,
                    "delay_ms": source.delay_ms,
                    "held": source.held,
                }
                | ({} if source.after is None else {"after": source.after})
                | ({} if source.event_time_zone is None else {"event_time_zone": source.event_time_zone})
                for name, source in self.sources.items()
            },
            "statics": {name: {"refresh": static.refresh.value} for name, static in self.statics.items()},
            "stages": {name: _describe_stage(stage) for name, stage in self.stages.items()},
        }

    @property
    def skips_what_is_gone(self) -> frozenset[InputName]:
        """The sources whose lost rows are skipped."""
        return frozenset(name for name, source in self.sources.items() if source.on_gone is OnGone.SKIP)

    def reads(self) -> Reads:
        """Returns for each stage the stages and the sources whose rows it reads as streams."""
        return {
            name: (
                tuple(StageName(node.name) for node in stage.streamed),
                tuple(InputName(node.name) for node in stage.inputs.values() if isinstance(node, Source)),
            )
            for name, stage in self.stages.items()
        }

    def fingerprint(self) -> str:
        """The SHA-256 of :meth:`describe` in hexadecimal."""
        return sha256(canonical(self.describe()))


def build_graph(
    name: PipelineName,
    declarations: Mapping[str, Declaration],
    params: type[BaseModel] | None,
    on_end: OnEnd,
    conf: Mapping[str, str],
    publish: Publish | None,
    checkpointing: Checkpointing,
    restart: RestartSettings | None,
    on_stage_failure: OnStageFailure | None,
    mistaken: Collection[str] | None = None,
) -> Graph:
    """Checks the declarations against each other; see :meth:`spark_jobs.Pipeline.graph`.

    Args:
        name: Name of the pipeline.
        declarations: Its declared parts.
        params: The model of its parameters.
        on_end: What happens at the end of the inputs.
        conf: Spark settings of the application.
        publish: Overrides the policies of the sinks.
        checkpointing: The checkpoint settings.
        restart: The restart settings of failed stages.
        on_stage_failure: What happens when a stage has failed permanently. None: the default for the pipeline's inputs.
        mistaken: None: the declarations are the whole pipeline. Otherwise the parts with known mistakes. These may be the reason if
            a part is unused or there is no sink.
    """
    here = Place(name)
    declared = _of(declarations, DeclaredStage)
    if not declared:
        raise here.refused("it has no stage.", "Declare one with @pipeline.stage.")
    whole, known = mistaken is None, frozenset(mistaken or ())
    if whole and all(stage.sink is None for stage in declared.values()):
        raise here.refused("no stage has a sink.", "Give the last stage one: @pipeline.stage(sink=DeltaSink(...)).")
    mistakes = Mistakes()
    for source in _of(declarations, Source).values():
        with mistakes.noted():
            if source.archive is not None:
                source.archive.check_fields(Place(name, "source", source.name), public_fields(params))
    for stage in declared.values():
        with mistakes.noted():
            _check_inputs(Place(name, "stage", stage.name), stage, declarations)
    if whole and not mistakes.found:  # an input that is misspelled is not used either
        _check_all_used(name, declarations, declared, mistakes)
    _check_sinks(declared.values(), params, mistakes)
    if params is None:
        _check_no_params(name, declarations, mistakes)
    mistakes.check()
    declarations = with_sorting_stages(name, with_sharing_stages(name, with_clocks(name, declarations)))
    declared = _of(declarations, DeclaredStage)
    order = _topological(here, declared)
    sources = _following(name, _of(declarations, Source))
    if on_end is OnEnd.SUSPEND:
        unchecked = [source for source in sources.values() if source.name not in known]
        _check_ends(name, unchecked, mistakes)
        _check_delays(name, unchecked, mistakes)
    with mistakes.noted():
        _check_stage_delays(name, declared, order, sources, known, every=on_end is OnEnd.SUSPEND)
    mistakes.check()
    nodes: dict[str, Source | Static | Stage] = {**sources, **_of(declarations, Static)}
    endless = not all(source.bounded for source in sources.values())
    if on_stage_failure is OnStageFailure.ISOLATE and not endless and not known:
        raise here.refused(
            'on_stage_failure="isolate" lets the other stages run without a failed one, but all inputs of this pipeline end: '
            "its round cannot complete without every stage.",
            'Remove it, or use on_stage_failure="fail".',
            on_stage_failure=on_stage_failure.value,
        )
    for stage_name in order:
        nodes[stage_name] = declared[stage_name].placed(
            MappingProxyType({argument: nodes[read] for argument, read in declared[stage_name].inputs.items()}),
            publish,
            endless=endless,
        )
    placed = [node for node in nodes.values() if isinstance(node, Stage)]
    for node in placed:
        _check_tables_end(Place(name, "stage", node.name), node)
        _check_pace(Place(name, "stage", node.name), node, [other for other in placed if node in other.inputs.values()])
    return Graph(
        pipeline=name,
        on_end=on_end,
        conf=conf,
        checkpointing=checkpointing,
        restart=restart or (RESTART_OF_UNBOUNDED if endless else None),
        on_stage_failure=on_stage_failure or (OnStageFailure.ISOLATE if endless else OnStageFailure.FAIL),
        sources=MappingProxyType({source.name: source for source in sources.values()}),
        statics=MappingProxyType({static.name: static for static in _of(declarations, Static).values()}),
        stages=MappingProxyType({node.name: node for node in placed}),
        mistaken=known,
    )


def _of(declarations: Mapping[str, Declaration], kind: type[K]) -> dict[str, K]:
    return {name: part for name, part in declarations.items() if isinstance(part, kind)}


def _following(pipeline: str, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Returns the sources. A source that begins after another one refers to it."""
    found = {}
    for name, source in sources.items():
        before = None if source.after is None else sources.get(source.after)
        place = Place(pipeline, "source", name)
        if source.after is not None and before is None:
            others = [other for other, each in sources.items() if each.bounded]
            raise place.refused(
                f"it begins after {source.after!r}, which is not declared.", suggestion(source.after, others), after=source.after
            )
        if before is not None and not before.bounded:
            raise place.refused(
                f"it begins after {source.after!r}, which has no end.",
                "Name a bounded source of the same table.",
                after=source.after,
            )
        found[name] = source if before is None else replace(source, follows=before)
    return found


def _check_inputs(place: Place, stage: DeclaredStage, declarations: Mapping[str, Declaration]) -> None:
    """Checks that each input is declared and at least one is a stream."""
    for argument, read in stage.inputs.items():
        if read not in declarations:
            via = "" if argument == read else f" (inputs= of the argument {argument!r})"
            others = [name for name in declarations if name != stage.name]
            raise place.refused(f"it reads {read!r}{via}, which is not declared.", suggestion(read, others), input=read)
        producer = declarations[read]
        if isinstance(producer, DeclaredStage) and producer.output_mode is OutputMode.COMPLETE:
            raise place.refused(
                f"it reads {read!r}, whose every batch is the whole result.",
                f"Read what {read!r} reads, and aggregate it here.",
                input=read,
            )
        has_no_table = isinstance(producer, Source) or (isinstance(producer, DeclaredStage) and producer.sink is None)
        if stage.reads_tables and has_no_table:
            raise place.refused(
                f"it reads tables, but {read!r} has none.",
                "Name a stage with a sink, or a static input.",
                input=read,
            )
    reads_stream = any(isinstance(declarations[read], Source | DeclaredStage) for read in stage.inputs.values())
    if not reads_stream and not is_clocked(stage, declarations):
        found = "only static inputs" if stage.inputs else "nothing"
        raise place.refused(
            f"it reads {found}, so there is no stream to run.",
            'Give it an argument named after a source or a stage. Or give its sink mode="complete": each round replaces the whole table.',
            found=found,
        )


def _topological(here: Place, stages: Mapping[str, DeclaredStage]) -> list[str]:
    """Returns the stages, each after its inputs. Of several candidates, the one that was declared first comes first."""
    names = list(stages)
    position = {name: index for index, name in enumerate(names)}
    sorter = graphlib.TopologicalSorter(
        {name: [read for read in stages[name].inputs.values() if read in stages] for name in names}
    )
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1]
        shown = " -> ".join(cycle)
        raise here.refused(
            f"its stages form a cycle: {shown}.", "Let one of them read something else.", cycle=list(cycle)
        ) from None
    order: list[str] = []
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, position[name])
        order.append(names[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order


def _check_all_used(
    pipeline: str, declarations: Mapping[str, Declaration], stages: Mapping[str, DeclaredStage], mistakes: Mistakes
) -> None:
    read = {name for stage in stages.values() for name in stage.inputs.values()}
    for name, part in declarations.items():
        if name in read or (isinstance(part, DeclaredStage) and part.sink):
            continue
        stage = isinstance(part, DeclaredStage)
        kind = "stage" if stage else "source" if isinstance(part, Source) else "static"
        problem = "it has no sink, and no stage reads it." if stage else "no stage reads it."
        remedy = f"{'Give it a sink' if stage else 'Name an argument of a stage after it'}, or remove it."
        with mistakes.noted():
            raise Place(pipeline, kind, name).refused(problem, remedy)


def _check_sinks(stages: Iterable[DeclaredStage], params: type[BaseModel] | None, mistakes: Mistakes) -> None:
    """Checks that sinks have distinct names, also on a file system that ignores case, and that their paths use known parameters."""
    seen: dict[str, str] = {}
    for stage, sink in [(each, sink) for each in stages for sink in each.sinks]:
        key = sink.name.casefold()
        with mistakes.noted():
            if key in seen:
                problem = f"the sinks of the stages {seen[key]!r} and {stage.name!r} have one name."
                raise sink.place.refused(
                    problem, 'Give one of them another: DeltaSink(..., name="...").', stages=[seen[key], stage.name]
                )
            seen[key] = stage.name
            sink.check_fields(public_fields(params))


def _check_no_params(pipeline: str, declarations: Mapping[str, Declaration], mistakes: Mistakes) -> None:
    for name, part in declarations.items():
        kind = "stage" if isinstance(part, DeclaredStage) else "source" if isinstance(part, Source) else "static"
        place = Place(pipeline, kind, name)
        with mistakes.noted():
            if arguments(place, part.function).get(PARAMS):
                raise place.refused(
                    "its function takes 'params', but the pipeline has none.", "Declare them: Pipeline(..., params=Params)."
                )


def _check_ends(pipeline: str, sources: Iterable[Source], mistakes: Mistakes) -> None:
    for source in sources:
        with mistakes.noted():
            if not source.bounded:
                raise Place(pipeline, "source", source.name).refused(
                    'on_end="suspend" ends a round where its inputs end, and this source is unbounded.',
                    'Use on_end="drain", or declare the source with bounded=True.',
                    on_end=OnEnd.SUSPEND.value,
                )


def _check_delays(pipeline: str, sources: Iterable[Source], mistakes: Mistakes) -> None:
    for source in sources:
        with mistakes.noted():
            if source.bounded and source.event_time is not None and source.delay_ms is None:
                raise Place(pipeline, "source", source.name).refused(
                    'on_end="suspend" needs a watermark_delay: the distance from a round\'s newest event time to its watermark.',
                    "Give it one; with hold_watermark=True rows may still come in any order within a round.",
                )


def _check_stage_delays(
    pipeline: str,
    stages: Mapping[str, DeclaredStage],
    order: Iterable[str],
    sources: Mapping[str, Source],
    mistaken: Collection[str],
    *,
    every: bool,
) -> None:
    """Checks that a stage with its own event time has a watermark delay. Other stages inherit theirs.

    Args:
        pipeline: Name of the pipeline.
        stages: All stages of the pipeline.
        order: Names of the stages, each after its inputs.
        sources: All sources of the pipeline.
        mistaken: Parts that may lack a delay because of a mistake in their declaration.
        every: True checks all stages. False checks only unbounded ones, whose watermark cannot wait for an end.
    """
    delayed = {name for name, source in sources.items() if source.delay_ms is not None} | set(mistaken)
    unbounded = {name for name, source in sources.items() if not source.bounded}
    for name in order:
        stage = stages[name]
        reads = set(stage.inputs.values())
        inherits, running = not reads.isdisjoint(delayed), not reads.isdisjoint(unbounded)
        missing = stage.event_time is not None and stage.delay_ms is None and not inherits and name not in mistaken
        if missing and (every or running):
            why = (
                "an unbounded input upstream needs a watermark_delay here: the watermark cannot wait for the end of the input."
                if running
                else 'on_end="suspend" needs a watermark_delay: the distance from a round\'s newest event time to its watermark.'
            )
            raise Place(pipeline, "stage", name).refused(why, "Add watermark_delay= next to event_time=.")
        if running:
            unbounded.add(name)
        if inherits or stage.delay_ms is not None:
            delayed.add(name)


def _check_tables_end(place: Place, stage: Stage) -> None:
    """Refuses a stage that reads a table that never has all its rows."""
    endless = [node.name for node in stage.inputs.values() if isinstance(node, Stage) and node.unbounded]
    if stage.reads_tables and endless:
        raise place.refused(
            f"it reads the table of {endless[0]!r}, which has an unbounded source upstream: the table never has all its rows.",
            f"Read the rows of {endless[0]!r} as a stream, or let a task compute the table.",
            input=endless[0],
        )


def _check_pace(place: Place, stage: Stage, consumers: Sequence[Stage]) -> None:
    """Refuses limits that have no effect.

    A stage with only bounded inputs starts after the stages that it reads, and runs without pauses.
    """
    if stage.limits.trigger_interval_ms is not None and not stage.unbounded:
        raise place.refused(
            "it has a trigger_interval, but only bounded inputs: it reads them to the end without a pause.",
            "Remove trigger_interval; it is for stages with an unbounded source upstream.",
        )
    if stage.limits.max_channel_bytes is None:
        return
    if not consumers:
        raise place.refused(
            "it has max_channel_bytes, which makes it wait for the stages that read it, but no stage does.",
            "Remove max_channel_bytes.",
        )
    later = [consumer.name for consumer in consumers if not consumer.unbounded]
    if later:
        raise place.refused(
            f"it has max_channel_bytes and would wait for ever: {later[0]!r} has only bounded inputs, so it begins after this stage.",
            "Remove max_channel_bytes; it is for stages with an unbounded source upstream.",
            consumers=later,
        )


def _describe_stage(stage: Stage) -> dict[str, Any]:
    sink = stage.sink
    described: dict[str, Any] = {
        "inputs": {argument: node.name for argument, node in stage.inputs.items()},
        "event_time": stage.event_time,
        "delay_ms": stage.delay_ms,
        "sink": None if sink is None else sink.describe(),
    }
    if stage.output_mode is not OutputMode.APPEND:
        described["output_mode"] = stage.output_mode.value
    if stage.reads_tables:
        described["reads_tables"] = True
    return described
