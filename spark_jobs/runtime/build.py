"""From a declared stage to one that can run: its inputs are read, its plan is checked, its table and its private log exist."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.functions import PARAMS, call
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import DeltaPin, PinnedInput
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import IncarnationId, InputName, PipelineName, RoundNumber, SinkName, StageName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.runtime import plan
from spark_jobs.runtime.bounds import Bound, ChannelBound, DeltaBound, FilesBound, FileSourceLog
from spark_jobs.runtime.cancellation import Cancellation
from spark_jobs.runtime.heartbeat import Heartbeat
from spark_jobs.runtime.inputs import Pin, pin_leaves, source_frame, static_frame
from spark_jobs.runtime.log_folding import Consumer
from spark_jobs.runtime.outlets import Outlet, prepare_outlet
from spark_jobs.runtime.private_log import PrivateLog
from spark_jobs.runtime.session import session_for_run
from spark_jobs.runtime.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.stage import InputWatermark, StageOutput, StageRun
from spark_jobs.runtime.staging import file_prefix
from spark_jobs.runtime.table_places import TablePlace
from spark_jobs.runtime.watermark import held_delay_ms, held_position
from spark_jobs.storage.files import Files

_WHOLE_VERSIONS = 2**31 - 1


@dataclass(frozen=True)
class RoundSite:
    """Everything that the stages of one round share."""

    spark: SparkSession
    pipeline: PipelineName
    incarnation: IncarnationId
    round: RoundNumber
    rounds: Rounds
    work: Files
    """The work directory."""
    places: Mapping[SinkName, TablePlace]
    """Where the sinks' tables are."""
    channels: Path
    """Where rows are staged that do not go into a public table's directory."""
    tombstones: Path
    """Where the deleted keys of upsert sinks are remembered."""
    params: Any
    heartbeat: Heartbeat
    cancellation: Cancellation
    open_directory: Callable[[str], Files]
    adopted: Mapping[InputName, AdoptedOffsets] = field(default_factory=dict)


@dataclass(frozen=True)
class _ReadInput:
    """An input as a stage reads it."""

    frame: DataFrame
    bounds: Mapping[int, "_FoundPin"]
    watermark: InputWatermark | None = None
    delay_on_plan_ms: int | None = None


@dataclass(frozen=True)
class _FoundPin:
    """Where a stream of an input ends."""

    pin: Pin | StageOutput
    files_per_batch: int | None = None
    rows: int | None = None
    adopted: AdoptedOffsets | None = None
    """Where the stream begins, if not at its beginning."""


def build_stage(stage: Stage, site: RoundSite, outputs: Mapping[StageName, StageOutput]) -> StageRun:
    """A stage that is ready to run.

    Pins the stage's inputs for the round, makes its table if it is missing and begins its private log: once, and before any batch.

    Raises:
        InvalidPipelineError: The functions return something that cannot run. Nothing was staged.
        UnsupportedTableError: The rows do not fit the sink's table.
    """
    session = session_for_run(site.spark)
    for key, value in stage.conf.items():
        session.conf.set(key, value)
    directory = f"stages/{stage.name}"
    checkpoint = checkpoint_directory(stage.name)
    spark_log = SparkLog(site.work, checkpoint)
    inputs = {
        argument: _read_input(node, position, stage, session, site, outputs)
        for position, (argument, node) in enumerate(stage.inputs.items())
    }
    frame = call_stage(stage, {argument: read.frame for argument, read in inputs.items()} | {PARAMS: site.params})
    watermarks = {InputName(argument): read.watermark for argument, read in inputs.items() if read.watermark}
    _check_plan(stage, frame, {mark.node for mark in watermarks.values()})
    if any(mark.held for mark in watermarks.values()):  # it does not move between two batches, so nothing can close there
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    bounds = _bounds(stage, frame, inputs, spark_log)
    outlet = prepare_outlet(
        stage,
        session,
        frame,
        site.places.get(stage.sink.name) if stage.sink else None,
        site.channels / stage.name,
        site.tombstones / (stage.sink.name if stage.sink else stage.name),
    )
    log = _begin_log(PrivateLog(site.work, f"{directory}/log", outlet.staged_in.uri), outlet, session)
    return StageRun(
        stage=stage,
        query_name=f"{site.pipeline}.{stage.name}",
        frame=outlet.frame,
        checkpoint_path=f"{site.work.url}/{checkpoint}",
        outlet=outlet,
        directory=site.open_directory(str(outlet.staged_in.path)),
        file_prefix=file_prefix(site.incarnation, stage.name),
        spark_log=spark_log,
        output=_output(stage, frame, log, watermarks),
        upstream=[outputs[node.name] for node in stage.inputs.values() if isinstance(node, Stage)],
        bounds=bounds,
        watermarks=watermarks,
        has_timers=plan.has_timers(frame),
        undrained=tuple(plan.undrained_operators(frame)),
        heartbeat=site.heartbeat,
        cancellation=site.cancellation,
        adopted=_adopted(frame, inputs),
    )


def _begin_log(log: PrivateLog, outlet: Outlet, session: SparkSession) -> PrivateLog:
    """Begins or goes on with the stage's private log.

    Where the table has only gained nullable columns since its first batch, so does the log; any other change is refused.
    """
    table, facts = outlet.staged_in, outlet.public.facts if outlet.public else {}
    widened = log.exists()
    if widened and outlet.public:
        widened = open_table(outlet.public.uri).accepts_schema(log.facts().get("schema_sha256", ""))
    if log.begin(table.metadata, table.protocol, facts, widened=widened):
        DeltaJvm(session).forget(log.path)
    return log


def _read_input(
    node: Source | Static | Stage,
    position: int,
    stage: Stage,
    session: SparkSession,
    site: RoundSite,
    outputs: Mapping[StageName, StageOutput],
) -> _ReadInput:
    if isinstance(node, Static):
        frame, pinned = static_frame(node, session, site.params, site.rounds.pinned(site.round, node.name))
        site.rounds.pin(site.round, pinned)
        return _ReadInput(frame, {})
    if isinstance(node, Source):
        frame = source_frame(node, session, site.params)
        leaves = plan.streaming_leaves(frame)
        pinned_source = site.rounds.pinned(site.round, node.name)
        if pinned_source is None:
            pinned_source = site.rounds.pin(site.round, PinnedInput(input=node.name, pins=pin_leaves(session, leaves)))
        before = _rows_before(site.rounds.pinned(RoundNumber(site.round - 1), node.name), len(leaves))
        adopted = site.adopted.get(node.name)
        found = {
            leaf.identity: _FoundPin(pin, _files_per_batch(leaf), None if adopted else _rows_of(pin, rows), adopted)
            for leaf, pin, rows in zip(leaves, pinned_source.pins, before, strict=True)
        }
        event_time = None if node.shared else node.event_time  # the stage that shares it only hands its rows on
        return _with_watermark(frame, found, event_time, node.delay_ms, node.held, position)
    output = outputs[node.name]
    frame = _channel(stage, session, output)
    channel = {leaf.identity: _FoundPin(output) for leaf in plan.streaming_leaves(frame)}
    return _with_watermark(frame, channel, output.event_time, output.delay_ms, output.held, position)


def _channel(stage: Stage, session: SparkSession, output: StageOutput) -> DataFrame:
    """The stream of what another stage staged.

    Where the watermark runs, a batch takes whole versions: the rows of one version are in no order, and a watermark that moved in between
    would make some of them late.
    """
    limits = stage.limits
    moving = output.event_time is not None and not output.held
    if moving and (limits.max_files_per_trigger or limits.max_bytes_per_trigger):
        raise InvalidPipelineError(
            f"Stage '{stage.name}' limits its batches, and its input's watermark moves between them: rows could become late.",
            safe="Nothing was staged.",
            remedy="Remove the limit, or declare hold_watermark=True on the source.",
            stage=stage.name,
        )
    reader = session.readStream.format("delta").option("startingVersion", 0)
    if moving or limits.max_files_per_trigger:
        reader = reader.option("maxFilesPerTrigger", limits.max_files_per_trigger or _WHOLE_VERSIONS)
    if limits.max_bytes_per_trigger:
        reader = reader.option("maxBytesPerTrigger", limits.max_bytes_per_trigger)
    return reader.load(output.log.url)


def _with_watermark(
    frame: DataFrame, found: Mapping[int, _FoundPin], event_time: str | None, delay_ms: int | None, held: bool, position: int
) -> _ReadInput:
    if event_time is None:
        return _ReadInput(frame, found)
    delay_on_plan_ms = held_delay_ms(position) if held else delay_ms or 0
    marked = frame.withWatermark(event_time, f"{delay_on_plan_ms} milliseconds")
    (node,) = plan.watermark_nodes(marked)
    return _ReadInput(marked, found, InputWatermark(node, delay_ms or 0, held), delay_on_plan_ms)


def call_stage(stage: Stage, available: Mapping[str, Any]) -> DataFrame:
    """What a stage's function returns.

    Raises:
        InvalidPipelineError: It is not a streaming frame.
    """
    try:
        frame = call(stage.function, available)
    except AnalysisException as error:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' cannot be analysed: {str(error).splitlines()[0]}",
            safe="Nothing was staged.",
            remedy="Correct the stage's function; its inputs have the columns that the stages before it return.",
            stage=stage.name,
        ) from error
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' does not return a streaming frame but {type(frame).__name__}.",
            safe="Nothing was staged.",
            remedy="Return a frame made from the stage's arguments.",
            stage=stage.name,
        )
    return frame


def _check_plan(stage: Stage, frame: DataFrame, own_nodes: set[str]) -> None:
    if set(plan.watermark_nodes(frame)) - own_nodes:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' calls withWatermark itself, and the runtime could not move that watermark at the end of the input.",
            safe="Nothing was staged.",
            remedy="Remove it; declare event_time= and watermark_delay= on the source, or on the stage before.",
            stage=stage.name,
        )
    waiting = plan.processing_time_operators(frame)
    if waiting:
        raise InvalidPipelineError(
            f"Stage '{stage.name}' has {waiting[0]}, which waits for the clock: a bounded stage would never end.",
            safe="Nothing was staged.",
            remedy="Use event-time timers or timeouts.",
            stage=stage.name,
        )


def _bounds(stage: Stage, frame: DataFrame, inputs: Mapping[str, _ReadInput], spark_log: SparkLog) -> list[Bound]:
    """The ends of the streams of ``frame``, in the order of Spark's offset log. Each stage that is read is told its consumer."""
    found = {identity: pin for read in inputs.values() for identity, pin in read.bounds.items()}
    bounds: list[Bound] = []
    for number, leaf in enumerate(plan.streaming_leaves(frame)):
        if leaf.identity not in found:
            raise InvalidPipelineError(
                f"Stage '{stage.name}' reads a stream ({leaf.format} {leaf.options.get('path', '')}) that is none of its inputs.",
                safe="Nothing was staged.",
                remedy="Declare it as a source, and name it as an argument.",
                stage=stage.name,
            )
        pinned = found[leaf.identity]
        if isinstance(pinned.pin, StageOutput):
            pinned.pin.consumers.append(Consumer(spark_log, number))
            bounds.append(ChannelBound(pinned.pin.log))
        elif pinned.pin.format == "delta":
            bounds.append(DeltaBound(pinned.pin, pinned.rows))
        else:
            source_log = FileSourceLog(spark_log.files, f"{spark_log.directory}/sources/{number}")
            bounds.append(FilesBound(pinned.pin, source_log, pinned.files_per_batch))
    return bounds


def _adopted(frame: DataFrame, inputs: Mapping[str, _ReadInput]) -> tuple[AdoptedOffsets, ...]:
    found = {identity: pin.adopted for read in inputs.values() for identity, pin in read.bounds.items()}
    return tuple(adopted for leaf in plan.streaming_leaves(frame) if (adopted := found[leaf.identity]) is not None)


def _output(stage: Stage, frame: DataFrame, log: PrivateLog, watermarks: Mapping[InputName, InputWatermark]) -> StageOutput:
    """The event time of a stage's result: declared, or that of the one column that still carries the watermark."""
    columns = plan.event_time_columns(frame)
    candidates = [column for column in columns if column.timestamp] or columns
    if stage.event_time is not None:
        if stage.event_time not in frame.columns:
            raise InvalidPipelineError(
                f"Stage '{stage.name}' declares event_time={stage.event_time!r} and returns {', '.join(frame.columns)}.",
                safe="Nothing was staged.",
                remedy="Correct event_time=.",
                stage=stage.name,
            )
        inherited = max((mark.delay_ms for mark in watermarks.values()), default=None)
        delay_ms = inherited if stage.delay_ms is None else stage.delay_ms
        return StageOutput(log, stage.event_time, delay_ms, delay_ms is None or any(mark.held for mark in watermarks.values()))
    if len(candidates) != 1:
        return StageOutput(log, None, None, False)
    (column,) = candidates
    position = held_position(column.delay_ms)
    if position is None:
        return StageOutput(log, column.name, column.delay_ms, False)
    argument = list(stage.inputs)[position]
    return StageOutput(log, column.name, watermarks[InputName(argument)].delay_ms, True)


def _files_per_batch(leaf: plan.Leaf) -> int | None:
    text = {key.lower(): value for key, value in leaf.options.items()}.get("maxfilespertrigger", "")
    return int(text) if text.isdigit() else None


def _rows_before(earlier: PinnedInput | None, leaves: int) -> list[int]:
    """How many rows the round before had read from each stream of a source, as far as its pins tell."""
    if earlier is None or len(earlier.pins) != leaves:
        return [0] * leaves
    return [pin.rows or 0 if isinstance(pin, DeltaPin) else 0 for pin in earlier.pins]


def _rows_of(pin: Pin, before: int) -> int | None:
    return pin.rows - before if isinstance(pin, DeltaPin) and pin.rows is not None else None
