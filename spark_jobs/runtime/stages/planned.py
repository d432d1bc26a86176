"""Plans all stages of a pipeline as Spark would run them, before anything is written.

A stage is planned with frames that have the columns and watermarks of its inputs and no rows, so that a mistake in the last stage is
found before the first one runs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.api.functions import PARAMS
from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.errors import InvalidPipelineError, StreamPipelineError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.runtime.inputs.ended_source import check_replaceable
from spark_jobs.runtime.inputs.inputs import check_kinds, source_frame, static_frame
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.spark_errors import refusing
from spark_jobs.runtime.stages.build import call_stage, check_plan, event_time_of, stage_session
from spark_jobs.runtime.stages.event_time import EventTime, OwnWatermark, OwnWatermarks
from spark_jobs.runtime.stages.input_frame import call_with_own_watermarks
from spark_jobs.runtime.stages.stage_inputs import ReadInput, channel_event_time, check_streams, source_event_time, with_watermark


@dataclass(frozen=True)
class PlannedStage:
    """A planned stage before its run."""

    inputs: Mapping[str, DataFrame]
    """The arguments of the function, without watermarks. An input stage is a stream with its columns."""
    frame: DataFrame
    event_time: EventTime


def plan_stages(graph: Graph, spark: SparkSession, params: Any, mistakes: Mistakes) -> dict[StageName, PlannedStage]:
    """Calls every function of a pipeline and lets Spark check each stage as a stream. Writes nothing.

    Args:
        graph: The pipeline.
        spark: The session.
        params: Parameters of the functions.
        mistakes: Collects the mistakes of all inputs and all stages that can be planned.

    Returns:
        All stages without a mistake. A stage downstream of one with a mistake is left out, because its own mistakes cannot be
        distinguished. A stage is not checked as a stream if its declaration, or that of an input, has a mistake: its event time may be
        unknown.

    Raises:
        StreamPipelineError: An input cannot be read now, but there is no mistake. Another try may succeed.
    """
    planned, away = dict[StageName, PlannedStage](), list[StreamPipelineError]()
    known: dict[str, DataFrame] = {}
    mistaken, read = set(graph.mistaken), set[str]()
    for stage in graph.stages.values():
        names = {node.name for node in stage.inputs.values()}
        read |= names
        if not mistaken.isdisjoint(names):
            mistaken.add(stage.name)
        with _collected(mistakes, away):
            frames = _inputs(stage, spark, params, planned, {} if stage.conf else known)
            if frames is not None:
                planned[stage.name] = _plan(stage, params, planned, frames, as_stream=stage.name not in mistaken)
    for node in graph.inputs:
        if node.name not in read:  # the stage that reads it is left out of the graph
            with _collected(mistakes, away):
                _input(node, spark, params, planned, known)
    if away and not mistakes.found:
        raise away[0]
    return planned


@contextmanager
def _collected(mistakes: Mistakes, away: list[StreamPipelineError]) -> Iterator[None]:
    try:
        with mistakes.noted():
            yield
    except StreamPipelineError as error:
        away.append(error)


def _inputs(
    stage: Stage, spark: SparkSession, params: Any, planned: Mapping[StageName, PlannedStage], known: dict[str, DataFrame]
) -> dict[str, DataFrame] | None:
    """Returns the arguments of a stage, or None if an input stage is not planned.

    Args:
        stage: The stage.
        spark: The session.
        params: Parameters of the functions.
        planned: Planned stages upstream.
        known: Frames of sources and static inputs for other stages. New ones are added.

    Raises:
        RejectedError: A source or static input has a mistake. The error lists all of them.
    """
    session = stage_session(stage, spark) if stage.conf else spark
    mistakes, found = Mistakes(), dict[str, DataFrame]()
    for argument, node in stage.inputs.items():
        if not isinstance(node, Stage) or node.name in planned:
            with mistakes.noted():
                found[argument] = _input(node, session, params, planned, known, reads_tables=stage.reads_tables)
                if stage.tolerance is not None and isinstance(node, Source):
                    _check_units(stage, node, found[argument])
    mistakes.check()
    return found if len(found) == len(stage.inputs) else None


def _check_units(stage: Stage, source: Source, frame: DataFrame) -> None:
    """Refuses a tolerant stage that reads a source without parts that can be passed over.

    Raises:
        InvalidPipelineError: The source is a change feed, or a stream of an unknown kind.
    """
    if all(kind_of(leaf).has_units(leaf) for leaf in plan.streaming_leaves(frame)):
        return
    raise InvalidPipelineError(
        f"Stage '{stage.name}' has tolerate=, and reads source '{source.name}', of which no part can be passed over. A tolerant stage "
        "reads Kafka, files, Delta tables without a change feed, and other stages.",
        remedy=f"Let another stage without tolerate= read '{source.name}', and read that stage.",
        stage=stage.name,
        source=source.name,
    )


def _plan(
    stage: Stage, params: Any, planned: Mapping[StageName, PlannedStage], inputs: Mapping[str, DataFrame], *, as_stream: bool
) -> PlannedStage:
    def with_watermarks(own: OwnWatermarks) -> dict[str, ReadInput]:
        return {
            argument: _with_watermark(node, inputs[argument], planned, position, stage, own.get(argument))
            for position, (argument, node) in enumerate(stage.inputs.items())
        }

    read, frame = call_with_own_watermarks(stage, with_watermarks, lambda frames: call_stage(stage, {**frames, PARAMS: params}))
    watermarks = {InputName(argument): each.watermark for argument, each in read.items() if each.watermark}
    check_plan(stage, frame, {mark.node for mark in watermarks.values()})
    check_streams(stage, frame, [each.frame for each in read.values()])
    if as_stream:
        with refusing(
            f"Spark cannot run stage '{stage.name}' as a stream",
            "Change the stage; windows and joins need an event time (event_time= on the source).",
            "Nothing was written.",
            stage=stage.name,
        ):
            plan.check_streaming(frame, stage.output_mode.value)
    return PlannedStage(inputs, frame, event_time_of(stage, frame, watermarks))


def _input(
    node: Source | Static | Stage,
    session: SparkSession,
    params: Any,
    planned: Mapping[StageName, PlannedStage],
    known: dict[str, DataFrame],
    *,
    reads_tables: bool = False,
) -> DataFrame:
    if isinstance(node, Stage):
        frame = planned[node.name].frame
        return session.createDataFrame([], frame.schema) if reads_tables else _stream_like(frame, session)
    if node.name not in known:
        if isinstance(node, Static):
            known[node.name] = static_frame(node, session, params, None)[0]
        else:
            known[node.name] = source_frame(node, session, params)
    return known[node.name]


def _stream_like(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Returns a stream with the columns of a frame."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return session.readStream.format("rate").load().select(*columns)


def _with_watermark(
    node: Source | Static | Stage,
    frame: DataFrame,
    planned: Mapping[StageName, PlannedStage],
    position: int,
    stage: Stage,
    own: OwnWatermark | None,
) -> ReadInput:
    if isinstance(node, Static) or (isinstance(node, Stage) and stage.reads_tables):
        return ReadInput(frame, {})
    if isinstance(node, Stage):
        return with_watermark(node.name, frame, {}, channel_event_time(node, planned[node.name].event_time, own), position)
    if node.bounded and stage.unbounded:
        check_replaceable(node.name, frame)
    event_time = source_event_time(node, own)
    if own is not None:
        check_kinds(node, frame, moving=not event_time.held)
    return with_watermark(node.name, frame, {}, event_time, position)
