"""Computes a stage's watermark at the end of a round.

A *held* input has a watermark that never moves by itself, because its delay is longer than all history: no row in any order is late. It is
moved once, at the round's end, by a batch that this package plans.
"""

from collections.abc import Mapping

from spark_jobs.protocol.ids import InputName

END_OF_TIME_MS = 253_402_300_799_000
"""9999-12-31T23:59:59Z. Later values overflow inside Spark and flush nothing, without an error."""
FOR_EVER_MS = 253_370_764_800_000
"""9999-01-01. An event at that time or later means "for ever". Its results, such as a window, may end after the end of time."""
BEGINNING_OF_TIME_MS = -62_167_219_200_000
"""A year before 0001-01-01, because 0001-01-01 is often written for "since ever" and depends on the time zone.

Spark's watermark begins at 1970, and Spark drops earlier rows as late.
"""
_HELD_MS = 10_000 * 366 * 86_400_000


def held_delay_ms(position: int) -> int:
    """Returns the delay that holds the watermark of an input. ``position`` makes it unique, so that Spark keeps inputs apart."""
    return _HELD_MS + position


def release_watermark_ms(newest_event_ms: Mapping[InputName, int], delays_ms: Mapping[InputName, int]) -> int | None:
    """Returns the watermark at the end of a suspended round: the minimum over all inputs of newest event time minus delay.

    None if an input has not had a row yet.
    """
    if any(name not in newest_event_ms for name in delays_ms) or not delays_ms:
        return None
    return min(newest_event_ms[name] - delay_ms for name, delay_ms in delays_ms.items())
