"""The event time of an input or a result of a stage."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EventTime:
    """An event time and its watermark. Without a column there is none."""

    column: str | None = None
    delay_ms: int | None = None
    held: bool = False
    """True if the watermark moves only at the end of a round."""


@dataclass(frozen=True)
class OwnWatermark:
    """The arguments of ``withWatermark`` on an input of a stage, as Spark understands them."""

    column: str
    delay_ms: int

    def instead_of(self, declared: EventTime, *, bounded: bool) -> EventTime:
        """Returns the event time of the input. Its watermark is held if the declared one is; without one, if the input has an end."""
        return EventTime(self.column, self.delay_ms, bounded if declared.column is None else declared.held)


OwnWatermarks = Mapping[str, OwnWatermark]
"""The watermarks that a stage sets on its inputs itself, by argument."""
