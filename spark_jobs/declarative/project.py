"""Builds the pipeline of a project: a source for each input of its flows, a stage for each flow, a sink for each table."""

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.pipelines.cli import PipelineSpec
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.output import MaterializedView, Table
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.functions import Function
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.refusals import Mistakes, suggestion
from spark_jobs.api.sink import DeltaSink
from spark_jobs.declarative.changes import changes_of
from spark_jobs.declarative.columns import as_defined, united
from spark_jobs.declarative.definitions import Definitions
from spark_jobs.declarative.flows import Flows, FoundFlow
from spark_jobs.declarative.session import SPARKS, ProjectSession, Read
from spark_jobs.declarative.sql import ParserProcess

_LIVE_INTERVAL = "1 minute"
"""The interval at which a live project computes a view that reads no stream."""


def build_pipeline(
    spec: PipelineSpec,
    definitions: Definitions,
    session: ProjectSession,
    mistakes: Mistakes,
    process: ParserProcess,
    *,
    live: bool,
) -> Pipeline:
    """Returns a project's pipeline. It suspends at its end, so that each run goes on with the rows since the last one.

    Args:
        spec: The project's specification.
        definitions: Definitions of its files.
        session: Their variable ``spark``.
        mistakes: Earlier refusals.
        process: Spark's parser, for SQL in flows.
        live: True for sources without an end.

    Raises:
        InvalidPipelineError: A definition is refused.
    """
    conf = {key: value for key, value in spec.configuration.items() if key.startswith(SPARKS)}
    pipeline = Pipeline(re.sub(r"\W", "_", spec.name), on_end="drain" if live else "suspend", conf=conf)
    flows = Flows(definitions, session, process)
    sound, found = not mistakes.found, dict(_found(flows, mistakes))
    stages = [(table, _own(definitions, table, found)) for table in definitions.outputs.values() if isinstance(table, Table)]
    with mistakes.noted():
        _declare_inputs(pipeline, flows, found.values(), live=live)
    for table, own in stages:
        if len(own) == _flows_into(definitions, table) and (own or sound):  # otherwise the mistake is known
            with mistakes.noted(), definitions.defined_at(table.source_code_location):
                _declare_table(pipeline, flows, table, own, live=live)
    mistakes.check()
    return pipeline


def _flows_into(definitions: Definitions, table: Table) -> int:
    return sum(definitions.find(flow.target) is table for flow in definitions.flows)


def _found(flows: Flows, mistakes: Mistakes) -> Iterable[tuple[int, FoundFlow]]:
    """Yields the flows into tables with their inputs, by their numbers."""
    definitions = flows.definitions
    for number, flow in enumerate(definitions.flows):
        with mistakes.noted():
            target = definitions.find(flow.target)
            if target is None and not mistakes.found:  # otherwise its definition may be refused
                names = [output.name for output in definitions.outputs.values()]
                raise definitions.refused(
                    flow.source_code_location,
                    f"the flow {flow.name!r} writes into {flow.target!r}, which is not defined.",
                    suggestion(flow.target, names),
                )
            if isinstance(target, Table):
                yield number, flows.find(flow)


def _own(definitions: Definitions, table: Table, found: Mapping[int, FoundFlow]) -> list[FoundFlow]:
    return [each for each in found.values() if definitions.find(each.flow.target) is table]


def _declare_inputs(pipeline: Pipeline, flows: Flows, found: Iterable[FoundFlow], *, live: bool) -> None:
    computed_again = {name for each in found if not each.streams for name in each.inputs}
    for name, read in flows.inputs.outside.items():
        if read.streaming:
            pipeline.source(bounded=not live, name=name)(_reading(read))
        else:
            pinned = read.pins() and not (live and name in computed_again)
            pipeline.static(refresh="round" if pinned else "unpinned", name=name)(_reading(read))


def _reading(read: Read) -> Function:
    def frame(spark: SparkSession) -> Any:
        return read.frame(spark)

    return frame


def _declare_table(pipeline: Pipeline, flows: Flows, table: Table, found: list[FoundFlow], *, live: bool) -> None:
    """Declares a table's stage. If other flows write into the table, too, each flow is a stage, and the table's stage unites them."""
    definitions = flows.definitions
    if not found:
        raise definitions.refused(
            table.source_code_location,
            f"no flow writes into {definitions.title(table)}.",
            f"Add one, such as with @dp.append_flow(target={table.name!r}), or remove the table.",
            condition="PIPELINE_DATASET_WITHOUT_FLOW",
        )
    name = definitions.namespace.short(table.name)
    change_flow = definitions.changes.get(definitions.namespace.identity(table.name))
    if change_flow is not None:
        with definitions.defined_at(change_flow.source_code_location):
            _declare_changes(pipeline, flows, table, change_flow, found)
        return
    if isinstance(table, MaterializedView):
        _declare_view(pipeline, flows, table, found, live=live)
        return
    sink = _sink(definitions, table)
    if len(found) == 1 and found[0].flow.name == table.name:
        _declare_flow(pipeline, flows, table, found[0], name, sink=sink)
        return
    names = []
    for each in found:
        names.append(_flow_stage(definitions, each.flow, name))
        with definitions.defined_at(each.flow.source_code_location):
            _declare_flow(pipeline, flows, table, each, names[-1])
    _declare_stage(pipeline, name, names, lambda frames: united(table, list(frames.values())), sink=sink)


def _declare_flow(pipeline: Pipeline, flows: Flows, table: Table, found: FoundFlow, name: str, **options: Any) -> None:
    """Declares the stage of a flow. Its rows get the columns of the table's definition."""
    run = flows.as_stage(found)
    _declare_stage(
        pipeline,
        name,
        found.inputs,
        lambda frames: as_defined(table, name, run(**frames)),
        conf=found.conf,
        **options,
    )


def _declare_stage(
    pipeline: Pipeline, name: str, inputs: Iterable[str], body: Callable[[dict[str, DataFrame]], Any], **options: Any
) -> None:
    """Declares a stage whose function passes its frames to ``body``, by the names of the inputs."""
    arguments = {f"{each}_" if keyword.iskeyword(each) else each: each for each in inputs}

    def stage(**frames: DataFrame) -> Any:
        return body({arguments[argument]: frame for argument, frame in frames.items()})

    parameters = [inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY) for argument in arguments]
    stage.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    pipeline.stage(name=name, inputs=arguments, **options)(stage)


def _declare_changes(pipeline: Pipeline, flows: Flows, table: Table, flow: AutoCdcFlow, found: list[FoundFlow]) -> None:
    """Declares the stage of a table whose rows an AUTO CDC flow replaces."""
    definitions = flows.definitions
    if len(found) > 1:
        raise definitions.refused(
            flow.source_code_location,
            f"the AUTO CDC flow into {flow.target!r} is not the only one: {', '.join(each.flow.name for each in found)}.",
            "Let each write into a table of its own.",
            condition="AUTOCDC_MULTIPLE_FLOWS_TO_TARGET",
        )
    name, changes = definitions.namespace.short(table.name), changes_of(definitions, flow)
    run, sink = flows.as_stage(found[0]), replace(_sink(definitions, table), **changes.options())
    _declare_stage(
        pipeline,
        name,
        found[0].inputs,
        lambda frames: as_defined(table, name, changes.of(run(**frames)), added=changes.computed),
        conf=found[0].conf,
        sink=sink,
    )


def _declare_view(pipeline: Pipeline, flows: Flows, view: MaterializedView, found: list[FoundFlow], *, live: bool) -> None:
    """Declares the stage of a materialized view.

    Groups are all published again. Other rows stay, and new ones are added. A view that reads no stream is computed again by each run, or
    at an interval. A view that no stream can keep is computed again at the end of each run.
    """
    definitions = flows.definitions
    if len(found) > 1:
        others = ", ".join(each.flow.name for each in found if each.flow.name != view.name)
        raise definitions.refused(
            view.source_code_location,
            f"other flows write into {definitions.title(view)}: {others}.",
            "Remove them.",
            condition="MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES",
        )
    reads_tables = bool(found[0].no_stream_because)
    if live and reads_tables:
        raise definitions.refused(
            view.source_code_location,
            f"{definitions.title(view)} reads tables of the project, and no stream can keep it up to date: "
            f"{found[0].no_stream_because}. A live project has no end at which it could be computed.",
            "Run the project without :live, or let a task compute the view.",
        )
    whole = found[0].aggregated or not found[0].streams or reads_tables
    sink, interval = replace(_sink(definitions, view), mode="complete" if whole else "append"), None
    if live and not found[0].streams:
        interval = _LIVE_INTERVAL
    name = definitions.namespace.short(view.name)
    _declare_flow(pipeline, flows, view, found[0], name, sink=sink, trigger_interval=interval, reads_tables=reads_tables)


def _flow_stage(definitions: Definitions, flow: Flow, table: str) -> str:
    name = definitions.namespace.short(flow.name)
    return f"{name}_flow" if name.casefold() == table.casefold() else name


def _sink(definitions: Definitions, table: Table) -> DeltaSink:
    return DeltaSink(
        table=definitions.namespace.table(table.name),
        partition_by=list(table.partition_cols or ()),
        cluster_by=list(table.cluster_by or ()),
        table_properties=dict(table.table_properties),
        comment=table.comment,
        schema_evolution="add_columns",
    )
