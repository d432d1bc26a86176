"""Decides where a stage's watermark goes at the end of a round.

A *held* input has a watermark that never moves by itself, because its delay is longer than all history: no row in any order is late. It is
moved once, at the round's end, by a batch that is planned by hand.
"""

from collections.abc import Mapping

from spark_jobs.protocol.ids import InputName

END_OF_TIME_MS = 253_402_300_799_000
"""9999-12-31T23:59:59Z. Later values overflow inside Spark and flush nothing, without an error."""
FOR_EVER_MS = 253_370_764_800_000
"""9999-01-01. An event at that time or later means "for ever": what is made of it, such as a window, may end after the end of time."""
BEGINNING_OF_TIME_MS = -62_167_219_200_000
"""A year before 0001-01-01, which people write for "since ever", and which is later in any time zone.

Spark begins at 1970 and drops earlier rows as late.
"""
_HELD_MS = 10_000 * 366 * 86_400_000


def held_delay_ms(position: int) -> int:
    """Returns the delay that holds the watermark of an input; ``position`` makes it the input's own, to be recognised in a plan."""
    return _HELD_MS + position


def held_position(delay_ms: int) -> int | None:
    """Returns which input a held delay belongs to; None if the delay holds nothing."""
    return delay_ms - _HELD_MS if delay_ms >= _HELD_MS else None


def release_watermark_ms(newest_event_ms: Mapping[InputName, int], delays_ms: Mapping[InputName, int]) -> int | None:
    """Returns where a suspended round leaves the watermark: the newest event less the delay, the least of all inputs.

    None where an input has not had a row yet: nothing can be said about it.
    """
    if any(name not in newest_event_ms for name in delays_ms) or not delays_ms:
        return None
    return min(newest_event_ms[name] - delay_ms for name, delay_ms in delays_ms.items())
