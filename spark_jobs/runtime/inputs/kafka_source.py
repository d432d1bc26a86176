"""Kafka topics as sources. Each partition is pinned at an offset.

Spark's lines for Kafka are positions, not records: ``{"clicks": {"0": 5}}`` says that the next record of partition 0 is to have offset 5 or
more. So an end that no record has (a transaction's marker, a record that was compacted away) is reached like any other.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError, StorageError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownKafka, KnownSource
from spark_jobs.protocol.losses import Loss, LostOffsets, OffsetRange, Records, Unit, units_of
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import KafkaPin, Pin
from spark_jobs.publication.delta_jvm import java_causes, java_message
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.lost_errors import ON_GONE
from spark_jobs.runtime.inputs.old_query import refused
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar, SourceKind, another_kind, another_source, refused_input
from spark_jobs.runtime.spark.plan import (
    Leaf,
    first_kafka_offset,
    kafka_topics,
    newest_offset,
    oldest_kafka_offsets,
    running_kafka_topics,
)
from spark_jobs.runtime.spark.session import spark_failures
from spark_jobs.storage.files import Files

T = TypeVar("T")
KAFKA = "kafka"
UNKNOWN_MAX_S = 10.0
"""The time after which a topic that a pattern does not find counts as gone."""
_ASK_AGAIN_S = 1.0
Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""
_WHICH_RECORDS = frozenset(
    {
        "subscribe",
        "subscribepattern",
        "assign",
        "startingoffsets",
        "endingoffsets",
        "startingtimestamp",
        "startingoffsetsbytimestamp",
    }
)
"""Options that say which records a stream reads."""
_FIRST = b"\0v1\n"
"""The header of the file with the beginning offsets of a stream."""


class KafkaSource(SourceKind):
    """Streams over Kafka topics."""

    def reads(self, leaf: Leaf) -> bool:
        return leaf.node == "StreamingRelationV2" and leaf.format.lower() == KAFKA

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:
        options = {key.lower(): value for key, value in leaf.options.items()}
        if options.get("failondataloss", "true").lower() == "false":
            raise refused_input(
                name,
                "sets failOnDataLoss=false: records that have expired would be left out silently",
                f"Remove the option. A run with missing records fails, and --accept-data-loss goes on without them. {ON_GONE}",
            )
        if bounded and not any(option.lower().startswith("starting") for option in leaf.options):
            raise refused_input(
                name,
                "reads Kafka without a beginning: Spark would begin at the newest record, which is the end of this input",
                'Add .option("startingOffsets", "earliest"); with "latest" the first round only marks where the next one begins.',
            )

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> KafkaPin:
        with _asking(name, "where its topics end"):
            return kafka_pin(newest_offset(frame, leaf) or "{}")

    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownKafka:
        there_before = before.topics.keys() if isinstance(before, KnownKafka) else set[str]()
        with _asking(name, "what its topics are", known=were_read(leaf, before)):
            cluster, topics = _once_known(
                leaf, lambda: kafka_topics(frame, leaf), lambda found: not there_before or bool(there_before & found[1].keys())
            )
        return KnownKafka(cluster=cluster, topics=topics)

    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        if not isinstance(before, KnownKafka) or not isinstance(now, KnownKafka):
            return another_kind(before, now)
        if before.cluster != now.cluster:
            return f"reads another Kafka cluster: {now.cluster}, but before it read {before.cluster}"
        renamed = sorted(before.topics.keys() - now.topics.keys()) if not before.topics.keys() & now.topics.keys() else []
        if renamed:
            return f"reads other topics: {', '.join(sorted(now.topics))}, but before it read {', '.join(renamed)}"
        anew = [topic for topic, found in sorted(now.topics.items()) if before.topics.get(topic, found) != found]
        return f"reads topics that were deleted and created again: {', '.join(anew)}" if anew else None

    def check_batch(self, read: ReadSoFar, line: str, losses: Sequence[Loss], query: StreamingQuery | None, number: int) -> None:
        """See :meth:`SourceKind.check_batch`. Spark goes on in any topic with the name: see also :meth:`KafkaBound.unread`."""
        if query is None or not isinstance(read.known, KnownKafka):
            return
        with _asking(read.name, "what its topics are"):
            ids = running_kafka_topics(read.session, query, number, list(read.known.topics))
        now = read.known.model_copy(update={"topics": read.known.topics | ids})
        if why := self.difference(read.known, now):
            raise another_source({read.name: why})

    def resolve(self, name: InputName, frame: DataFrame, leaf: Leaf, known: KnownSource) -> KnownSource:
        with _asking(name, "where its topics begin"):
            line = first_kafka_offset(frame, leaf)
        return known.model_copy(update={"begins": kafka_pin(line).topics})

    def renewed(self, before: KnownSource, now: KnownSource) -> KnownSource:
        if not isinstance(before, KnownKafka) or not isinstance(now, KnownKafka):
            return now
        return now.model_copy(update={"topics": before.topics | now.topics, "begins": before.begins})

    def begin_log(self, known: KnownSource, log: OwnLog) -> None:
        if isinstance(known, KnownKafka) and known.begins:
            with suppress(AlreadyExistsError):  # written by Spark or an earlier attempt
                log.files.create(f"{log.directory}/0", _FIRST + kafka_line(_offsets(known.begins)).encode())

    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        assert isinstance(pin, KafkaPin)
        return known.model_copy(update={"begins": pin.topics})

    def lost(self, read: ReadSoFar, *, thorough: bool) -> LostOffsets | None:
        ends = _offsets(read.pin.topics) if isinstance(read.pin, KafkaPin) else None
        at = _next_offsets(read)
        if ends is not None and at and all(at.get(partition, 0) >= end for partition, end in ends.items()):
            return None  # no rows are read any more
        oldest = self._oldest(read, at)
        topics: dict[str, dict[int, OffsetRange]] = {}
        for (topic, number), first in at.items():
            begin = oldest.get((topic, number))
            if begin is None:
                topics.setdefault(topic, {})[number] = OffsetRange(first=first)
            elif first < begin and (ends is None or first < ends.get((topic, number), 0)):
                topics.setdefault(topic, {})[number] = OffsetRange(first=first, end=begin)
        return LostOffsets(input=read.name, stage=read.stage, topics=topics) if topics else None

    def has_units(self, leaf: Leaf) -> bool:
        return True

    def units(self, read: ReadSoFar, line: str) -> list[tuple[Unit, int | None]]:
        ends = {} if line == NO_OFFSET else partition_offsets(line)
        begin = _next_offsets(read)
        ranges = [
            Records(topic=topic, partition=number, first=begin.get((topic, number), 0), end=end)
            for (topic, number), end in sorted(ends.items())
        ]
        return [(each, each.end - each.first) for each in ranges if each.first < each.end]

    def has_read(self, read: ReadSoFar, unit: Unit) -> bool:
        if read.line == NO_OFFSET or not isinstance(unit, Records):
            return False
        return partition_offsets(read.line).get((unit.topic, unit.partition), 0) > unit.first

    def rows_of(self, session: SparkSession, leaf: Leaf, unit: Unit) -> DataFrame:
        assert isinstance(unit, Records)
        options = {key: value for key, value in leaf.options.items() if key.lower() not in _WHICH_RECORDS}
        begins, ends = ({unit.topic: {str(unit.partition): offset}} for offset in (unit.first, unit.end))
        reader = session.read.format(KAFKA).options(**options)
        reader = reader.option("assign", json.dumps({unit.topic: [unit.partition]}))
        return reader.option("startingOffsets", json.dumps(begins)).option("endingOffsets", json.dumps(ends)).load()

    def without(self, frame: DataFrame, units: Sequence[Unit]) -> DataFrame:
        records = [unit for unit in units if isinstance(unit, Records)]
        if not records:
            return frame
        return frame.where(~reduce(or_, [_is_in(unit) for unit in records]))

    def filtered(self, read: ReadSoFar, line: str, losses: Sequence[Loss]) -> int:
        """See :meth:`SourceKind.filtered`. Spark counts the rows before the filter. Each passed-over offset had a record."""
        records = [unit for unit in units_of(losses) if isinstance(unit, Records)]
        if not records:
            return 0
        planned = [unit for unit, _ in self.units(read, line) if isinstance(unit, Records)]
        same = [
            min(left.end, batch.end) - max(left.first, batch.first)
            for left in records
            for batch in planned
            if (left.topic, left.partition) == (batch.topic, batch.partition)
        ]
        return sum(max(each, 0) for each in same)

    def past(self, read: ReadSoFar, loss: Loss) -> KnownSource | None:
        at = _next_offsets(read)
        oldest = self._oldest(read, at)
        left = {partition: max(offset, oldest[partition]) for partition, offset in at.items() if partition in oldest}
        begins = kafka_pin(kafka_line(left))
        return read.known.model_copy(update={"begins": begins.topics})

    def first_line(self, known: KnownSource) -> str:
        assert isinstance(known, KnownKafka)
        return kafka_line(_offsets(known.begins))

    def _oldest(self, read: ReadSoFar, at: Mapping[Partition, int]) -> dict[Partition, int]:
        with _asking(read.name, "where its topics begin"):
            return _once_known(
                read.leaf,
                lambda: oldest_kafka_offsets(read.session, read.leaf, list(at)),
                lambda found: {topic for topic, _ in at} <= {topic for topic, _ in found},
            )

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> "KafkaBound":
        assert isinstance(pin, KafkaPin)
        gone = {partition for loss in losses if isinstance(loss, LostOffsets) for partition in _read_no_more(loss)}
        ends = {partition: end for partition, end in _offsets(pin.topics).items() if partition not in gone}
        return KafkaBound(kafka_pin(kafka_line(ends)), partial(kafka_beginning, log.files, log.directory))

    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        raise refused(
            name, "it reads Kafka", "Only offsets of queries over Delta tables or files can be adopted.", path=adopted.checkpoint
        )

    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        raise NotImplementedError("refused before")


def were_read(leaf: Leaf, before: KnownSource | None) -> bool:
    """Returns True if a stream was read before with every topic that its options name now. A pattern names none."""
    if _has_pattern(leaf):
        return True
    options = {key.lower(): value for key, value in leaf.options.items()}
    named = json.loads(options["assign"]) if "assign" in options else options.get("subscribe", "").split(",")
    return isinstance(before, KnownKafka) and {topic.strip() for topic in named} <= before.topics.keys()


def _has_pattern(leaf: Leaf) -> bool:
    return any(option.lower() == "subscribepattern" for option in leaf.options)


def _once_known(leaf: Leaf, ask: Callable[[], T], is_known: Callable[[T], bool]) -> T:
    """Asks Kafka until it knows the topics that a stream has read before, or they are gone.

    A broker that has just started may not know a topic for a moment. It says so of a topic that is named, and leaves it out if a
    pattern has to find it.
    """
    until_s = time.monotonic() + UNKNOWN_MAX_S
    while not is_known(found := ask()) and _has_pattern(leaf) and time.monotonic() < until_s:
        time.sleep(_ASK_AGAIN_S)
    return found


@contextmanager
def _asking(name: InputName, what: str, *, known: bool = True) -> Iterator[None]:
    """Adds the name of the input to an error of a request to Kafka.

    Args:
        name: The input.
        what: The requested information.
        known: True if its topics existed before: a broker that starts may not know them yet.

    Raises:
        InvalidPipelineError: It reads a topic that does not exist and did not exist before.
        StorageError: Kafka does not answer.
    """
    try:
        yield
    except spark_failures() as error:
        unknown = any("UnknownTopicOrPartition" in str(cause.toString()) for cause in java_causes(error))
        if unknown and not known:
            raise refused_input(
                name, "reads a Kafka topic that is not there", "Create the topic, or correct its name."
            ) from error
        gone = (
            f" If a topic is gone for good, leave it out of the source's options, and go on without it: --accept-data-loss {name} "
            f"(accept_data_loss=['{name}'])."
        )
        raise StorageError(
            f"Input '{name}' reads Kafka, which does not tell {what}: {java_message(error)}.",
            safe="Nothing was written.",
            remedy="Check the brokers and the kafka. options of the source. A retry asks again." + (gone if unknown else ""),
            input=name,
        ) from error


def _is_in(unit: Records) -> Column:
    """Returns the condition for the rows of a unit."""
    offset = F.col("offset")
    of_partition = (F.col("topic") == unit.topic) & (F.col("partition") == unit.partition)
    return of_partition & (offset >= unit.first) & (offset < unit.end)


def _next_offsets(read: ReadSoFar) -> dict[Partition, int]:
    """Returns the offset that a stage reads next, by partition."""
    if read.line != NO_OFFSET:
        return partition_offsets(read.line)
    begins = read.known.begins if isinstance(read.known, KnownKafka) else {}
    return kafka_beginning(read.log.files, read.log.directory) or _offsets(begins)


def _read_no_more(loss: LostOffsets) -> list[Partition]:
    return [(topic, number) for topic, numbers in loss.topics.items() for number, gone in numbers.items() if gone.end is None]


def _offsets(topics: Mapping[str, Mapping[int, int]]) -> dict[Partition, int]:
    return {(topic, number): offset for topic, numbers in topics.items() for number, offset in numbers.items()}


def partition_offsets(line: str) -> dict[Partition, int]:
    """Returns the offset of each partition in a line of Spark's offset log for Kafka."""
    topics = json.loads(line)
    return {(topic, int(number)): int(offset) for topic, numbers in topics.items() for number, offset in numbers.items()}


def kafka_line(offsets: Mapping[Partition, int]) -> str:
    """Returns the line of Spark's offset log with these offsets."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics)


def kafka_pin(line: str) -> KafkaPin:
    """Returns the pin of all records before the offsets of a line."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), offset in partition_offsets(line).items():
        topics.setdefault(topic, {})[number] = offset
    return KafkaPin(topics=topics)


def kafka_beginning(files: Files, directory: str) -> dict[Partition, int]:
    """Returns the offsets at which a query's first batch began. Spark computes them once from the source's options and keeps them.

    Empty until Spark has computed them.
    """
    try:
        data = files.read(f"{directory}/0")
    except NotFoundError:
        return {}
    return partition_offsets(data.decode().partition("\n")[2])  # a zero byte, the version, a new line, the offsets


@dataclass(frozen=True)
class KafkaBound(Bound):
    """Every record before the pinned offsets.

    A partition that came after the pin stays at its beginning; the next round reads it from there. One that begins after its pin, because
    its records have expired or the source begins at the newest ones, has ended.
    """

    pin: KafkaPin
    beginning: Callable[[], dict[Partition, int]]

    def exceeded(self, previous: str | None, line: str) -> bool:
        return line != NO_OFFSET and partition_offsets(line) != self._cut(previous, line)

    def reached(self, line: str | None) -> bool:
        if line is None or line == NO_OFFSET:
            return False
        offsets = partition_offsets(line)
        return all(offsets.get(partition, 0) >= end for partition, end in self._ends().items())

    def cut_back(self, previous: str | None, line: str) -> str:
        return kafka_line(self._cut(previous, line))

    def passed_over(self, line: str) -> str | None:
        """See :meth:`Bound.passed_over`. Spark finds no new records if fewer than ``minOffsetsPerTrigger`` are left."""
        return None if self.reached(line) else self.available(line)

    def available(self, line: str) -> str:
        offsets = {} if line == NO_OFFSET else partition_offsets(line)
        return kafka_line(offsets | {partition: max(offsets.get(partition, 0), end) for partition, end in self._ends().items()})

    def rows_expected(self, line: str | None) -> int | None:
        """Returns the largest possible number of remaining rows: an offset may have no record."""
        begin = self.beginning() if line is None or line == NO_OFFSET else partition_offsets(line)
        return sum(max(end - begin.get(partition, 0), 0) for partition, end in self._ends().items()) if begin else None

    def unread(self, line: str | None) -> str | None:
        read = self.beginning() if line is None or line == NO_OFFSET else partition_offsets(line)
        left = {partition: end for partition, end in self._ends().items() if read.get(partition, 0) < end}
        if not left:
            return None
        (topic, number), end = min(left.items())
        return f"{len(left)} partitions: partition {number} of topic {topic} was read up to offset {read.get((topic, number), 0)} of {end}"

    def _cut(self, previous: str | None, line: str) -> dict[Partition, int]:
        before = self.beginning() if previous is None or previous == NO_OFFSET else partition_offsets(previous)
        ends, cut = self._ends(), {}
        for partition, offset in partition_offsets(line).items():
            if partition in ends:
                cut[partition] = min(offset, max(ends[partition], before.get(partition, 0)))
            elif partition in before:
                cut[partition] = before[partition]
        return cut

    def _ends(self) -> dict[Partition, int]:
        return _offsets(self.pin.topics)
