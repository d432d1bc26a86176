"""How far a stream has read a channel, the private log of the stage before it, and where that ends."""

import json
from dataclasses import dataclass

from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.staged.private_log import PrivateLog

_VERSION = "reservoirVersion"


@dataclass(frozen=True)
class ChannelBound(Bound):
    """The end of a channel: all of it, once its producer has ended; nothing else writes there, so no batch reads past it."""

    producer: StageName
    log: PrivateLog
    begins: BatchId
    """The last batch before those that the stream reads."""

    def reached(self, line: str | None) -> bool:
        position = channel_position(line)
        return position is not None and position.version > self.log.latest()

    def rows_expected(self, line: str | None) -> int | None:
        position = channel_position(line)
        consumed = first_version(self.begins) if position is None else position.version
        staged = self.log.between(BatchId(max(consumed - 1, 0) - 1), BatchId(self.log.latest() - 1))
        return sum(batch.rows for batch in staged)


def first_version(begins: BatchId) -> int:
    """The first version of a private log that a stream reads which begins after batch ``begins``."""
    return 0 if begins < 0 else begins + 2


@dataclass(frozen=True)
class ChannelPosition:
    """How far a stream has read a private log."""

    version: int
    """The one that is read next."""
    index: int
    """The last file of it that was read; negative for none."""


def channel_position(line: str | None) -> ChannelPosition | None:
    """What a line of Spark's offset log says of a private log; None where nothing was read, or another stream has taken its place."""
    if line is None or line == NO_OFFSET or _VERSION not in (offset := json.loads(line)):
        return None
    return ChannelPosition(int(offset[_VERSION]), int(offset["index"]))
