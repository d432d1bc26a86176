"""The position of a stage in its channels, the private logs of the stages upstream, and their ends."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedAmount, StagedBatch, total

_VERSION = "reservoirVersion"
_BEFORE_THE_FIRST_FILE = -1
"""The index of a position at which nothing of a version was read."""


@dataclass(frozen=True)
class ChannelBound(Bound):
    """The end of a channel: everything, when its producer has ended. Only the producer writes there, so no batch reads beyond it."""

    producer: StageName
    log: PrivateLog
    begins: BatchId
    """The last batch before the batches that the stream reads."""

    def reached(self, line: str | None) -> bool:
        position = channel_position(line)
        return position is not None and position.version > self.log.latest()

    def read_between(self, previous: str | None, line: str) -> list[StagedBatch]:
        """Returns the batches of the producer of which a batch reads anything."""
        begin, end = channel_position(previous), channel_position(line)
        if end is None:
            return []
        first = first_version(self.begins) if begin is None else begin.version
        last = end.version if end.index >= 0 else end.version - 1
        return list(self.log.between(BatchId(max(first - 1, 0) - 1), BatchId(last - 1)))

    def rest(self, line: str) -> str | None:
        """Returns the line of a batch with all rows after ``line``, or None if no row before it was read."""
        if channel_position(line) is None:
            return None
        return json.dumps(json.loads(line) | {_VERSION: self.log.latest() + 1, "index": _BEFORE_THE_FIRST_FILE})

    def rows_expected(self, line: str | None) -> int | None:
        position = channel_position(line)
        consumed = first_version(self.begins) if position is None else position.version
        staged = self.log.between(BatchId(max(consumed - 1, 0) - 1), BatchId(self.log.latest() - 1))
        return sum(batch.rows for batch in staged)


def first_version(begins: BatchId) -> int:
    """Returns the first version of a private log that a stream reads if it begins after batch ``begins``."""
    return 0 if begins < 0 else begins + 2


@dataclass(frozen=True)
class ChannelPosition:
    """The position of a stream in a private log."""

    version: int
    """The next version to read."""
    index: int
    """The last file of it that was read; negative for none."""

    @property
    def last_whole_batch(self) -> BatchId:
        """Returns the last batch that was read completely. Batch b is version b + 1."""
        return BatchId(self.version - 2)


def channel_position(line: str | None) -> ChannelPosition | None:
    """Returns the position in a line of Spark's offset log, or None if nothing was read or another stream has taken its place."""
    if line is None or line == NO_OFFSET or _VERSION not in (offset := json.loads(line)):
        return None
    return ChannelPosition(int(offset[_VERSION]), int(offset["index"]))


class Consumption:
    """The position of one stage in the rows of its producers.

    Args:
        spark_log: Log of the stage's query.
        bounds: Bounds of its streams, in the order of Spark's offset log.
    """

    def __init__(self, spark_log: SparkLog, bounds: Sequence[Bound]) -> None:
        self._spark_log = spark_log
        self._channels = [(number, bound) for number, bound in enumerate(bounds) if isinstance(bound, ChannelBound)]

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        """Returns for each producer the last of its batches that ``batch`` or an earlier one has read from."""
        found: dict[StageName, BatchId] = {}
        for _, bound, line in self._lines(batch):
            if (position := channel_position(line)) is not None:
                read = BatchId(position.version - 1) if position.index >= 0 else position.last_whole_batch
                found[bound.producer] = max(read, found.get(bound.producer, NO_BATCH))
        return found

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        """Returns True if no staged row of these producers is unread."""
        return not self.in_flight_bytes(producers)

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        """Returns the number of unread bytes of these producers."""
        left = self._left(self._spark_log.last_commit())
        return sum(bound.log.amount_after(batch).size_bytes for _, bound, batch in left if bound.producer in producers)

    def lag(self) -> Mapping[int, StagedAmount]:
        """Returns the unread amount of each stream that reads a channel."""
        return {number: bound.log.amount_after(batch) for number, bound, batch in self._left(self._spark_log.last_commit())}

    def in_flight(self, stage: StageName, cut: Mapping[StageName, BatchId]) -> StagedAmount:
        """Returns the unread amount at a cut: from the position of ``stage`` to the cuts of its producers."""
        return total(bound.log.amount_after(batch, cut[bound.producer]) for _, bound, batch in self._left(cut[stage]))

    def _left(self, batch: BatchId) -> Iterator[tuple[int, ChannelBound, BatchId]]:
        """Yields the channels after ``batch``, each with the last of its batches that is read completely."""
        for number, bound, line in self._lines(batch):
            if line is None:
                yield number, bound, bound.begins
            elif (position := channel_position(line)) is not None:
                yield number, bound, position.last_whole_batch

    def _lines(self, batch: BatchId) -> Iterator[tuple[int, ChannelBound, str | None]]:
        if batch == NO_BATCH:
            yield from ((number, bound, None) for number, bound in self._channels)
            return
        lines = self._spark_log.offsets(batch).sources
        yield from ((number, bound, None if lines[number] == NO_OFFSET else lines[number]) for number, bound in self._channels)
