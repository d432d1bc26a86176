"""Builds a runnable stage from a declared one: reads its inputs, checks its plan, creates its table and its private log."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.functions import PARAMS, call
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import BatchId, InputName, StageName, file_prefix
from spark_jobs.protocol.losses import LostVersions
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.fitting import misfits_of
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.session import as_active, is_of_session, session_for_run
from spark_jobs.runtime.spark.spark_errors import refusing
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.built_stage import InputWatermark
from spark_jobs.runtime.stages.event_time import EventTime, OwnWatermarks
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.input_frame import call_with_own_watermarks
from spark_jobs.runtime.stages.judging import with_violations
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage import BATCHES_WITHOUT_ROWS, StageRun
from spark_jobs.runtime.stages.stage_inputs import (
    NONE_ENDED,
    ReadInput,
    bound_of,
    check_positions,
    prepare_streams,
    read_input,
    replaced_inputs,
    source_stream,
    streams_of,
)
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.tables.outlets import Outlet, prepare_outlet
from spark_jobs.runtime.tables.schemas import returned_alone

_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
_POLLING = "spark.sql.streaming.pollingDelay"
_POLLING_DELAY, _POLLING_DELAY_IN_STORES = "100ms", "1s"
"""Intervals at which an idle stage looks for rows. Spark's 10 ms keep a core busy. In a store each look is at least one request."""


def build_stage(
    stage: Stage,
    site: RoundSite,
    outputs: Mapping[StageName, StageOutput],
    earlier: StageRun | None = None,
    ended: Set[str] = NONE_ENDED,
    recorded: BatchId = NO_BATCH,
) -> StageRun:
    """Builds a stage that is ready to run.

    Pins the stage's inputs, creates its table if it is missing, and begins its private log, once and before any batch.

    Args:
        stage: The stage.
        site: Site of the round.
        outputs: Outputs of the stages upstream.
        earlier: The same stage before, if it is built again.
        ended: Inputs that have ended. They are replaced by empty streams. Other ended inputs are found.
        recorded: Last batch of the stage in the checkpoint that the attempt goes on from.

    Raises:
        InvalidPipelineError: The functions return something that cannot run. Nothing was staged.
        UnsupportedTableError: The rows do not fit the sink's table.
        SourceChangedError: A source has got other columns while the stage was built.
    """
    session, lost_files = stage_session(stage, site.spark), _lost_files(site, stage.name)
    if lost_files is not None:
        session.conf.set(_MISSING_FILES, "true")  # each batch is compared with the accepted losses
    spark_log = earlier.spark_log if earlier else SparkLog(site.work, checkpoint_directory(stage.name))

    def read(own: OwnWatermarks) -> dict[str, ReadInput]:
        return {
            argument: read_input(node, position, stage, session, site, outputs, argument in ended, own.get(argument))
            for position, (argument, node) in enumerate(stage.inputs.items())
        }

    inputs, frame = call_with_own_watermarks(stage, read, lambda frames: call_stage(stage, {**frames, PARAMS: site.params}))
    if stage.unbounded and session.conf.get(_POLLING, None) is None:
        session.conf.set(_POLLING, polling_delay(plan.streaming_leaves(frame)))
    watermarks = {InputName(argument): read.watermark for argument, read in inputs.items() if read.watermark}
    check_plan(stage, frame, {mark.node for mark in watermarks.values()})
    streams = streams_of(stage, frame, inputs)
    arguments = [argument for argument, _ in streams]
    before = replaced_inputs(spark_log, arguments)
    if before - ended:
        return build_stage(stage, site, outputs, earlier, before | ended, recorded)
    if earlier is None:
        check_positions(streams, stage, session, spark_log)
    if any(mark.held for mark in watermarks.values()):  # it does not move between two batches, so no window can close there
        session.conf.set(BATCHES_WITHOUT_ROWS, "false")
    prefix = file_prefix(site.incarnation, stage.name)
    outlet = outlet_of(stage, session, frame, site)
    prepare_streams(stage, streams, outlet.frame, spark_log)
    log = PrivateLog(site.work, log_directory(stage.name), outlet.staged_in.uri)
    output = earlier.output if earlier else _output(stage, frame, outlet, _begin_log(log, outlet, session, recorded), watermarks)
    return StageRun(
        stage=stage,
        query_name=f"{site.pipeline}.{stage.name}",
        frame=outlet.frame,
        checkpoint_path=f"{site.work.url}/{spark_log.directory}",
        outlet=outlet,
        directory=site.open_directory(outlet.staged_in.uri),
        file_prefix=prefix,
        spark_log=spark_log,
        output=output,
        upstream=[outputs[node.name] for node in stage.inputs.values() if isinstance(node, Stage)],
        bounds=[bound_of(number, pin, session, spark_log) for number, (_, pin) in enumerate(streams)],
        arguments=arguments,
        ended=frozenset(ended),
        watermarks=watermarks,
        has_timers=plan.has_timers(frame),
        stateful=plan.is_stateful(frame),
        holds_back=plan.holds_rows_back(frame),
        only_aggregates=plan.only_aggregates(frame),
        undrained=tuple(plan.undrained_operators(frame)),
        heartbeat=site.heartbeat,
        cancellation=site.cancellation,
        gate=earlier.gate if earlier else Gate(partial(output.has_room, stage.limits.max_channel_bytes)),
        sources=[source_stream(number, *stream, stage, session, spark_log) for number, stream in enumerate(streams)],
        lost_files=lost_files,
        adopted=tuple(pin.adopted for _, pin in streams if pin.adopted is not None),
    )


def outlet_of(stage: Stage, session: SparkSession, frame: DataFrame, site: RoundSite) -> Outlet:
    """Returns the outlet for a result of a stage. Creates and checks the tables. Idempotent."""
    place = site.places.get(stage.sink.name) if stage.sink else None
    if place is not None:
        place = replace(place, staged_prefix=file_prefix(site.incarnation, stage.name))
    tombstones = f"{site.tombstones}/{stage.sink.name if stage.sink else stage.name}"
    return prepare_outlet(stage, session, frame, place, f"{site.channels}/{stage.name}", tombstones)


def stage_session(stage: Stage, spark: SparkSession) -> SparkSession:
    session = session_for_run(spark)
    for key, value in stage.conf.items():
        session.conf.set(key, value)
    return session


def polling_delay(streams: Iterable[plan.Leaf]) -> str:
    """Returns the interval at which an idle query looks for rows of these streams."""
    schemes = {urlsplit(stream.options.get("path", "")).scheme for stream in streams}
    return _POLLING_DELAY if schemes <= {"", "file"} else _POLLING_DELAY_IN_STORES


def _lost_files(site: RoundSite, stage: StageName) -> frozenset[str] | None:
    found = [loss for loss in site.losses if isinstance(loss, LostVersions) and loss.stage == stage and loss.files]
    return frozenset(file.path for loss in found for file in loss.files) if found else None


def _begin_log(log: PrivateLog, outlet: Outlet, session: SparkSession, recorded: BatchId) -> PrivateLog:
    """Begins or continues the stage's private log. If the table was changed, Delta reads the log again."""
    table, public = outlet.staged_in, outlet.public
    metadata = returned_alone(table.metadata, outlet.frame.columns)
    if public is None:
        replaced = log.begin(metadata, table.protocol, None)
    else:
        needed = outlet.merge.compared if outlet.merge else None
        replaced = log.begin(
            metadata,
            table.protocol,
            public.staged_for,
            recorded=recorded,
            misfits=lambda staged: misfits_of([staged], public.shape, needed),
        )
    if replaced:
        DeltaJvm(session).forget(log.url)
    return log


def _output(
    stage: Stage, frame: DataFrame, outlet: Outlet, log: PrivateLog, watermarks: Mapping[InputName, InputWatermark]
) -> StageOutput:
    found = event_time_of(stage, frame, watermarks)
    return StageOutput(stage.name, log, found.column, found.delay_ms, found.held, outlet=outlet)


def call_stage(stage: Stage, available: Mapping[str, Any], *, streaming: bool = True) -> DataFrame:
    """Calls a stage's function, and returns its rows.

    Args:
        stage: The stage.
        available: The arguments of its function.
        streaming: False if all inputs are batch frames.

    Raises:
        InvalidPipelineError: The result is not made from the inputs, or does not fit the stage's expectations.
    """
    with refusing(
        f"Stage '{stage.name}' cannot be analysed",
        "Correct the stage's function; its inputs have the columns that the stages upstream return.",
        "Nothing was staged.",
        stage=stage.name,
    ):
        session = next(given.sparkSession for given in available.values() if isinstance(given, DataFrame))
        with as_active(session):
            frame = call(stage.function, available)
    if not isinstance(frame, DataFrame) or frame.isStreaming != streaming:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' does not return a streaming frame but {type(frame).__name__}.",
            safe="Nothing was staged.",
            remedy="Return a frame made from the stage's arguments.",
            stage=stage.name,
        )
    if not is_of_session(frame, session):
        raise InvalidPipelineError(
            f"Stage '{stage.name}' returns a frame of another Spark session.",
            safe="Nothing was staged.",
            remedy="Return a frame made from the stage's arguments. A frame has its session as frame.sparkSession.",
            stage=stage.name,
        )
    return with_violations(stage, frame)


def check_plan(stage: Stage, frame: DataFrame, own_nodes: set[str]) -> None:
    if set(plan.watermark_nodes(frame)) - own_nodes:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' calls withWatermark on a frame that is not an input as it was read, so the runtime cannot move that "
            "watermark at the end of the input.",
            safe="Nothing was staged.",
            remedy="Call it on an argument, before everything but where() and alias(). Compute the event time in the source or in a stage "
            "upstream.",
            stage=stage.name,
        )
    waiting = [] if stage.unbounded else plan.processing_time_operators(frame)
    if waiting:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' has {waiting[0]}, which waits for processing time: a bounded stage would never end.",
            safe="Nothing was staged.",
            remedy="Use event-time timers or timeouts.",
            stage=stage.name,
        )


def event_time_of(stage: Stage, frame: DataFrame, watermarks: Mapping[InputName, InputWatermark]) -> EventTime:
    """Returns the declared event time of a stage, or that of the only column that still carries the watermark."""
    columns = plan.event_time_columns(frame)
    candidates = [column for column in columns if column.timestamp] or columns
    if stage.event_time is not None:
        if stage.event_time not in frame.columns:
            raise InvalidPipelineError(
                f"Stage '{stage.name}' declares event_time={stage.event_time!r}, but returns {', '.join(frame.columns)}.",
                safe="Nothing was staged.",
                remedy="Correct event_time=.",
                stage=stage.name,
            )
        inherited = max((mark.delay_ms for mark in watermarks.values()), default=None)
        delay_ms = inherited if stage.delay_ms is None else stage.delay_ms
        held = delay_ms is None or any(mark.held for mark in watermarks.values())
        return EventTime(stage.event_time, delay_ms, held and not stage.unbounded)
    if len(candidates) != 1:
        return EventTime()
    (column,) = candidates
    if column.held is None:
        return EventTime(column.name, column.delay_ms)
    if stage.unbounded:  # a consumer could not wait for the end of its rows
        moving = max((mark.delay_ms for mark in watermarks.values() if not mark.held), default=0)
        return EventTime(column.name, moving)
    argument = list(stage.inputs)[column.held]
    return EventTime(column.name, watermarks[InputName(argument)].delay_ms, held=True)
