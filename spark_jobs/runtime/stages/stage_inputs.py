"""Reads the inputs of a stage as frames, and finds the ends of their streams."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import PinnedInput
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import BatchId, InputName, RoundNumber, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss, StagedFile, Unit, units_of
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.delta_source import EXCLUDE, excluding, may_begin_later
from spark_jobs.runtime.inputs.ended_source import check_replaceable, ended_frame, is_ended, without_end_row
from spark_jobs.runtime.inputs.following import FollowingSession, check_follows, pinned_table
from spark_jobs.runtime.inputs.inputs import check_kinds, pin_leaves, source_frame, static_frame
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar, SourceKind, SourceStream
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.spark_errors import refusing
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound, first_version
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.runtime.stages.begin_anew import begins_anew
from spark_jobs.runtime.stages.built_stage import InputWatermark
from spark_jobs.runtime.stages.event_time import EventTime, OwnWatermark
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.stages.table_so_far import table_so_far
from spark_jobs.runtime.stages.watermark import held_delay_ms

_WHOLE_VERSIONS = 2**31 - 1
NONE_ENDED: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadInput:
    """An input of a stage as a frame."""

    frame: DataFrame
    bounds: Mapping[int, "FoundPin"]
    watermark: InputWatermark | None = None


@dataclass(frozen=True)
class FoundPin:
    """The end of an input's stream."""

    pin: Pin | StageOutput | None
    """None: the stream has no end."""
    earlier: Pin | None = None
    """The end in the round before."""
    source: tuple[SourceKind, plan.Leaf] | None = None
    """The stream of a source, if its kind is known."""
    known: KnownSource | None = None
    """The identity of the source's stream."""
    adopted: AdoptedOffsets | None = None
    """The offsets at which the stream begins, if not at its beginning."""
    losses: Sequence[Loss] = ()
    """The losses of the stage in the source."""
    position: int = 0
    """The number of the stream in its source."""
    begins: BatchId = NO_BATCH
    """For a channel: the last batch before the batches that are read."""


def read_input(
    node: Source | Static | Stage,
    position: int,
    stage: Stage,
    session: SparkSession,
    site: RoundSite,
    outputs: Mapping[StageName, StageOutput],
    ended: bool,
    own: OwnWatermark | None = None,
) -> ReadInput:
    """Returns an input of a stage.

    Args:
        node: The input.
        position: Its position among the inputs.
        stage: The stage.
        session: Its session.
        site: Site of the round.
        outputs: Outputs of the stages upstream.
        ended: True if the input has ended. An empty stream replaces it.
        own: The watermark that the stage sets on the input itself.

    Raises:
        InvalidPipelineError: The input cannot be read, or cannot have that watermark.
    """
    if isinstance(node, Static):
        before, is_replayed = site.statics.pinned(node.name), node.name in site.replayed_statics
        frame, pinned = static_frame(node, session, site.params, before, is_replayed=is_replayed)
        site.statics.pin(pinned)
        return ReadInput(frame, {})
    if isinstance(node, Source):
        return _read_source(node, position, stage, session, site, ended, own)
    output = outputs[node.name]
    if stage.reads_tables:
        return ReadInput(table_so_far(node, output, session, site.checkpoints, site.attempt), {})
    begins = site.round.begins.get(stage.name, {}).get(node.name, NO_BATCH)
    losses, oldest = site.losses_of(stage.name, InputName(node.name)), output.log.oldest()
    passed_over = [unit.file for unit in units_of(losses) if isinstance(unit, StagedFile) and unit.batch >= oldest]
    event_time = channel_event_time(node, EventTime(output.event_time, output.delay_ms, output.held), own)
    frame = _channel(stage, session, output, event_time, begins, passed_over)
    if ended:
        return _ended(node.name, frame, event_time.column, position)
    channel = {leaf.identity: FoundPin(output, begins=begins) for leaf in plan.streaming_leaves(frame)}
    return with_watermark(node.name, frame, channel, event_time, position)


def channel_event_time(node: Stage, declared: EventTime, own: OwnWatermark | None) -> EventTime:
    """Returns the event time of an input that is the result of another stage."""
    return declared if own is None else own.instead_of(declared, bounded=not node.unbounded)


def source_event_time(node: Source, own: OwnWatermark | None) -> EventTime:
    """Returns the event time of an input that is a source. The stage that shares a bounded source only passes its rows on."""
    declared = EventTime() if node.shared and node.bounded else EventTime(node.event_time, node.delay_ms, node.held)
    return declared if own is None else own.instead_of(declared, bounded=node.bounded)


def _read_source(
    node: Source,
    position: int,
    stage: Stage,
    session: SparkSession,
    site: RoundSite,
    ended: bool,
    own: OwnWatermark | None,
) -> ReadInput:
    event_time = source_event_time(node, own)
    losses = site.losses_of(stage.name, node.name)
    frame = _source_frame(node, session, site, units_of(losses))
    leaves = plan.streaming_leaves(frame)
    if own is not None:
        check_kinds(node, frame, moving=not event_time.held)
    if ended:
        return _ended(node.name, frame, event_time.column, position)
    if node.bounded and stage.unbounded:
        check_replaceable(node.name, frame)
    known = _begin_at(node, stage, frame, leaves, site)
    leaves = plan.streaming_leaves(frame)
    if not node.bounded:
        endless = {
            leaf.identity: FoundPin(None, source=(kind_of(leaf), leaf), known=each, losses=losses, position=position)
            for position, (leaf, each) in enumerate(zip(leaves, known, strict=True))
        }
        return with_watermark(node.name, frame, endless, event_time, position)
    pinned = _pinned(node, frame, leaves, site)
    earlier = site.rounds.pinned(RoundNumber(site.round.round - 1), node.name)
    before = earlier.pins if earlier and len(earlier.pins) == len(leaves) else (None,) * len(leaves)
    adopted = site.round.adopted.get(node.name)
    found = {
        leaf.identity: FoundPin(pin, pin if adopted else old, (kind_of(leaf), leaf), each, adopted, losses, position=position)
        for position, (leaf, pin, old, each) in enumerate(zip(leaves, pinned.pins, before, known, strict=True))
    }
    return with_watermark(node.name, frame, found, event_time, position)


def _begin_at(
    node: Source, stage: Stage, frame: DataFrame, leaves: list[plan.Leaf], site: RoundSite
) -> Sequence[KnownSource | None]:
    """Sets the beginnings of a source's streams: those of the round, or new ones after a loss."""
    own = site.round.begins_now.get(stage.name, {})
    known: Sequence[KnownSource | None] = own.get(node.name, site.sources.get(node.name, ()))
    if len(known) != len(leaves):
        return (None,) * len(leaves)
    anew = begins_anew(site.work, stage.name).get(node.name, {})
    known = [anew.get(position, each) for position, each in enumerate(known)]
    for leaf, each in zip(leaves, known, strict=True):
        if each is not None and (node.follows is None or node.name in own):
            kind_of(leaf).begin_at(frame, leaf, each)
    return known


def _source_frame(node: Source, session: SparkSession, site: RoundSite, without: Sequence[Unit]) -> DataFrame:
    """Returns the frame of a source without some units. One that follows another begins after that one's end, which is pinned first."""
    before = node.follows
    if before is None:
        return source_frame(node, session, site.params, without)
    earlier = source_frame(before, session, site.params)
    pin = pinned_table(node.name, before.name, _pinned(before, earlier, plan.streaming_leaves(earlier), site))
    frame = source_frame(node, FollowingSession.of(session, pin), site.params, without)
    check_follows(node.name, before.name, frame, pin)
    return frame


def _pinned(node: Source, frame: DataFrame, leaves: list[plan.Leaf], site: RoundSite) -> PinnedInput:
    """Returns the end of a bounded source in this round, and records it the first time."""
    pinned = site.rounds.pinned(site.round.round, node.name)
    if pinned is not None:
        return pinned
    now, before = pin_leaves(node.name, frame, leaves), RoundNumber(site.round.round - 1)
    earlier = None if node.name in site.round.new_sources else site.rounds.pinned(before, node.name)
    if (
        node.name not in site.round.adopted
    ):  # otherwise the rows that the old query has read are unknown, and each batch is checked
        read = earlier.pins if earlier and len(earlier.pins) == len(leaves) else (None,) * len(leaves)
        for leaf, old, new in zip(leaves, read, now, strict=True):
            kind_of(leaf).check_new(node.name, frame.sparkSession, leaf, old, new)
    if earlier is not None and node.after_publication is None:  # otherwise files that were read are archived or deleted
        losses = [loss for loss in site.rounds.losses(before) if loss.input == node.name]
        for leaf, old, new in zip(leaves, earlier.pins, now, strict=False):
            kind_of(leaf).check_unchanged(node.name, old, new, losses)
    return site.rounds.pin(site.round.round, PinnedInput(input=node.name, pins=now))


def _ended(name: str, frame: DataFrame, event_time: str | None, position: int) -> ReadInput:
    """Returns an input whose rows have all been read. It does not hold the watermark back any more."""
    stand_in = ended_frame(frame.sparkSession, frame, event_time)
    streams = {leaf.identity: FoundPin(None) for leaf in plan.streaming_leaves(stand_in)}
    read = with_watermark(name, stand_in, streams, EventTime(event_time, 0), position)
    return read if event_time is None else replace(read, frame=without_end_row(read.frame))


def _channel(
    stage: Stage,
    session: SparkSession,
    output: StageOutput,
    event_time: EventTime,
    begins: BatchId,
    passed_over: Sequence[str] = (),
) -> DataFrame:
    """Returns the stream of the rows that another stage staged, without files that are passed over.

    If the watermark moves, a batch reads whole versions: the rows of a version have no order, and a watermark that moved in between would
    make some of them late.
    """
    limits = stage.limits
    moving = event_time.column is not None and not event_time.held
    if moving and (limits.max_files_per_trigger or limits.max_bytes_per_trigger):
        raise InvalidPipelineError(
            f"Stage '{stage.name}' limits its batches, but its input's watermark moves between them: rows could become late.",
            safe="Nothing was staged.",
            remedy="Remove the limit, or declare hold_watermark=True on the source.",
            stage=stage.name,
        )
    if begins != NO_BATCH:
        may_begin_later(session)
    if stage.unbounded:  # otherwise it reads the log when that has ended, and Delta reads its versions once
        output.log.write_checksums()
    reader = session.readStream.format("delta").option("startingVersion", first_version(begins))
    if moving or limits.max_files_per_trigger:
        reader = reader.option("maxFilesPerTrigger", limits.max_files_per_trigger or _WHOLE_VERSIONS)
    if limits.max_bytes_per_trigger:
        reader = reader.option("maxBytesPerTrigger", limits.max_bytes_per_trigger)
    if passed_over:
        reader = reader.option(EXCLUDE, excluding(passed_over))
    return reader.load(output.log.url)


def with_watermark(
    name: str,
    frame: DataFrame,
    found: Mapping[int, FoundPin],
    event_time: EventTime,
    position: int,
) -> ReadInput:
    """Returns an input with the watermark that the runtime puts on it.

    Raises:
        InvalidPipelineError: The event time is not a timestamp.
    """
    column, delay_ms, held = event_time.column, event_time.delay_ms, event_time.held
    if column is None:
        return ReadInput(frame, found)
    delay_on_plan_ms = held_delay_ms(position) if held else delay_ms or 0
    who, remedy = f"Input '{name}' cannot have a watermark on {column!r}", "Correct event_time=."
    with refusing(who, remedy, "Nothing was staged.", input=name):
        marked = frame.withWatermark(column, f"{delay_on_plan_ms} milliseconds")
    (node,) = plan.watermark_nodes(marked)
    if held:  # without a delay, rows without an event time would be forgotten at once, at Spark's first watermark in 1970
        marked = plan.with_held_delay(marked, column, delay_ms or 1, position)
    return ReadInput(marked, found, InputWatermark(node, delay_ms or 0, held))


def check_positions(streams: Sequence[tuple[str, FoundPin]], stage: Stage, session: SparkSession, spark_log: SparkLog) -> None:
    """Refuses a source that has fewer rows than the stage has read.

    Raises:
        RejectedError: There is such a source.
    """
    last = spark_log.last_offsets()
    for (argument, found), line in zip(streams, spark_log.offsets(last).sources, strict=True) if last != NO_BATCH else ():
        if found.source is not None:
            kind, leaf = found.source
            kind.check_position(InputName(stage.inputs[argument].name), session, leaf, line)


def check_streams(stage: Stage, frame: DataFrame, inputs: Iterable[DataFrame]) -> None:
    """Refuses a stage that reads a stream that is not one of its inputs.

    Args:
        stage: The stage.
        frame: The frame that its function has returned.
        inputs: The arguments of its function.

    Raises:
        InvalidPipelineError: There is such a stream.
    """
    known = {leaf.identity for each in inputs for leaf in plan.streaming_leaves(each)}
    for leaf in plan.streaming_leaves(frame):
        if leaf.identity not in known:
            raise _undeclared(stage, leaf)


def streams_of(stage: Stage, frame: DataFrame, inputs: Mapping[str, ReadInput]) -> list[tuple[str, FoundPin]]:
    """Returns the input and the end of each stream of ``frame``, in the order of Spark's offset log.

    Raises:
        InvalidPipelineError: The function reads another stream than when the start was planned.
    """
    found = {identity: (argument, pin) for argument, read in inputs.items() for identity, pin in read.bounds.items()}
    streams = []
    for leaf in plan.streaming_leaves(frame):
        if leaf.identity not in found:
            raise _undeclared(stage, leaf)
        streams.append(found[leaf.identity])
    return streams


def _undeclared(stage: Stage, leaf: plan.Leaf) -> InvalidPipelineError:
    return InvalidPipelineError(
        f"Stage '{stage.name}' reads a stream ({leaf.format} {leaf.options.get('path', '')}) that is not one of its inputs.",
        safe="Nothing was staged.",
        remedy="Declare it as a source, and name it as an argument.",
        stage=stage.name,
    )


def prepare_streams(stage: Stage, streams: Sequence[tuple[str, FoundPin]], frame: DataFrame, spark_log: SparkLog) -> None:
    """Prepares the sources' streams to read every row, with the columns that the stage was built with.

    Raises:
        SourceChangedError: A source has other columns now.
    """
    options = {}
    for number, (argument, found) in enumerate(streams):
        if found.source is not None:
            kind, leaf = found.source
            own = OwnLog(spark_log.files, f"{spark_log.directory}/schemas/{number}")
            options[number] = kind.prepare(InputName(stage.inputs[argument].name), frame.sparkSession, leaf, own, found.losses)
    plan.add_options(frame, {number: added for number, added in options.items() if added})


def source_stream(
    number: int, argument: str, found: FoundPin, stage: Stage, session: SparkSession, spark_log: SparkLog
) -> SourceStream | None:
    """Returns the stream with this number if it belongs to a source; None for a channel or an ended input."""
    if found.source is None or found.known is None or isinstance(found.pin, StageOutput):
        return None
    kind, leaf = found.source
    own_log = OwnLog(spark_log.files, f"{spark_log.directory}/sources/{number}")
    name = InputName(stage.inputs[argument].name)
    read = ReadSoFar(name, found.position, stage.name, session, leaf, NO_OFFSET, found.known, found.pin, own_log)
    return SourceStream(kind, read, found.losses)


def bound_of(number: int, found: FoundPin, session: SparkSession, spark_log: SparkLog) -> Bound:
    """Returns the end of the stream with this number. For a channel, adds the consumer to its stage."""
    pin, own_log = found.pin, OwnLog(spark_log.files, f"{spark_log.directory}/sources/{number}")
    if found.source is not None and found.known is not None and found.adopted is None:
        found.source[0].begin_log(found.known, own_log)
    if pin is None:
        return found.source[0].endless(session, found.source[1], own_log, found.losses) if found.source else Bound()
    if isinstance(pin, StageOutput):
        pin.add_consumer(Consumer(spark_log, number, found.begins))
        return ChannelBound(pin.producer, pin.log, found.begins)
    if found.source is None:
        raise ValueError("a pin of no stream")
    kind, leaf = found.source
    return kind.bound(pin, found.earlier, leaf, own_log, found.losses)


def replaced_inputs(spark_log: SparkLog, arguments: Sequence[str]) -> frozenset[str]:
    """Returns the inputs that had ended before and were replaced by empty streams in the stage's last batch."""
    last = spark_log.last_offsets()
    if last == NO_BATCH:
        return NONE_ENDED
    lines = spark_log.offsets(last).sources
    return frozenset(argument for argument, line in zip(arguments, lines, strict=True) if is_ended(line))
