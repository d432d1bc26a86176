"""Watermark delays as Spark writes them: ``"30 minutes"``, ``"1 hour 30 minutes"``, ``"1 day"``."""

import re

from spark_jobs.api.refusals import Place

_UNITS_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_UNIT_OF = {form: unit for unit in _UNITS_MS for form in (unit, f"{unit}s")}
_TERM = re.compile(r"([0-9]+)\s*([a-z]+)(?:\s+|$)")
_MOST_MS = 36_500 * _UNITS_MS["day"]
"""A held watermark is held back by as much: longer than all history that a timestamp column sensibly has."""


def parse_delay_ms(place: Place, delay: object) -> int:
    """A delay in milliseconds, from 0 to 100 years.

    Terms are whole numbers with a unit from milliseconds to weeks; several are added up. Months and years have no fixed length.

    Raises:
        InvalidPipelineError: It is not such an interval.
    """
    remedy = 'Write a whole number and a unit from milliseconds to weeks, such as "30 minutes" or "1 hour 30 minutes".'
    if not isinstance(delay, str):
        raise place.refused(f"watermark_delay={delay!r} is not a string.", remedy)
    text, position, total_ms = delay.strip().lower(), 0, 0
    while position < len(text) or not text:
        term = _TERM.match(text, position)
        if term is None:
            raise place.refused(f"watermark_delay={delay!r} is not an interval.", remedy, watermark_delay=delay)
        number, unit = term.groups()
        if unit in {"month", "months", "year", "years"}:
            problem = f"watermark_delay={delay!r} has {unit}, which have no fixed length."
            raise place.refused(problem, 'Write days instead, such as "30 days".', watermark_delay=delay)
        if unit not in _UNIT_OF:
            raise place.refused(f"watermark_delay={delay!r} has the unknown unit {unit!r}.", remedy, watermark_delay=delay)
        total_ms += _bounded(number) * _UNITS_MS[_UNIT_OF[unit]]
        position = term.end()
    if total_ms > _MOST_MS:
        raise place.refused(f"watermark_delay={delay!r} is longer than 36500 days.", "Give a shorter one.", watermark_delay=delay)
    return total_ms


def _bounded(number: str) -> int:
    """``number``, or more than any delay may be: Python refuses to convert thousands of digits."""
    return int(number) if len(number) <= 18 else _MOST_MS + 1
