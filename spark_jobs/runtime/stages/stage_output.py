"""The output of a stage for its consumers: the rows of its private log, and the positions of the consumers."""

import threading
from dataclasses import dataclass, field

from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.tables.outlets import Outlet


@dataclass(frozen=True)
class StageOutput:
    """The output of a stage, which its consumers read."""

    producer: StageName
    log: PrivateLog
    event_time: str | None
    delay_ms: int | None
    held: bool
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the stage has staged its last row."""
    consumers: list[Consumer] = field(default_factory=list)
    """The consumers. Every stage that reads this one as a stream adds itself before anything runs."""
    outlet: Outlet | None = None
    """The tables of the stage."""

    def ahead_bytes(self) -> int:
        """Returns the number of staged bytes that the slowest consumer has not read."""
        return max((self.log.amount_after(consumer.consumed()).size_bytes for consumer in self.consumers), default=0)

    def has_room(self, max_channel_bytes: int | None) -> bool:
        """Returns True if the slowest consumer is close enough for another batch, or if there is no limit."""
        return max_channel_bytes is None or self.ahead_bytes() < max_channel_bytes

    def add_consumer(self, consumer: Consumer) -> None:
        """Adds a stream that reads the log. Adding it again has no effect."""
        if consumer not in self.consumers:
            self.consumers.append(consumer)
