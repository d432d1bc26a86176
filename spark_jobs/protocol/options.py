"""Reads option values: intervals as Spark writes them, whole numbers, ratios and flags. Errors name the option."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from spark_jobs.protocol.errors import RejectedError

_UNITS_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_UNIT_OF = {form: unit for unit in _UNITS_MS for form in (unit, f"{unit}s")}
_TERM = re.compile(r"([0-9]+)\s*([a-z]+)(?:\s+|$)")
E = TypeVar("E", bound=StrEnum)
_MOST_DIGITS = 18
INTERVAL_MAX_MS = 36_500 * _UNITS_MS["day"]
"""The delay of a held watermark: longer than any sensible history of timestamps."""


class Refuse(Protocol):
    """Makes the error to raise from two sentences and evidence."""

    def __call__(self, problem: str, remedy: str, **evidence: Any) -> RejectedError: ...


Reader = Callable[[Refuse, str, object], Any]
"""Reads the value of an option. Its arguments are those of :func:`flag`."""


def interval_ms(refused: Refuse, option: str, value: object, *, least_ms: int = 0) -> int:
    """Returns an interval in milliseconds, at most 100 years.

    Terms are whole numbers with a unit from milliseconds to weeks, such as ``"1 hour 30 minutes"``; several are added up. Months
    and years have no fixed length.

    Raises:
        RejectedError: The value is not such an interval, or is shorter than ``least_ms``.
    """
    remedy = 'Write a whole number and a unit from milliseconds to weeks, such as "30 minutes" or "1 hour 30 minutes".'
    if not isinstance(value, str):
        raise refused(f"{option}={value!r} is not a string.", remedy, **{option: str(value)})
    text, position, total_ms = value.strip().lower(), 0, 0
    while position < len(text) or not text:
        term = _TERM.match(text, position)
        if term is None:
            raise refused(f"{option}={value!r} is not an interval.", remedy, **{option: value})
        number, unit = term.groups()
        if unit in {"month", "months", "year", "years"}:
            problem = f"{option}={value!r} has {unit}, which have no fixed length."
            raise refused(problem, 'Write days instead, such as "30 days".', **{option: value})
        if unit not in _UNIT_OF:
            raise refused(f"{option}={value!r} has the unknown unit {unit!r}.", remedy, **{option: value})
        total_ms += _bounded(number) * _UNITS_MS[_UNIT_OF[unit]]
        position = term.end()
    if total_ms > INTERVAL_MAX_MS:
        raise refused(f"{option}={value!r} is longer than 36500 days.", "Give a shorter one.", **{option: value})
    if total_ms < least_ms:
        problem = f"{option}={value!r} is shorter than {least_ms} millisecond{'' if least_ms == 1 else 's'}."
        raise refused(problem, "Give a longer one.", **{option: value})
    return total_ms


def whole_number(refused: Refuse, option: str, value: object, *, least: int) -> int:
    """Returns a whole number of at least ``least``.

    Raises:
        RejectedError: The value is not such a number.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        problem = f"{option}={value!r} is not a whole number {f'above {least - 1}' if least else 'of at least 0'}."
        raise refused(problem, f"Give {option} such a number.", **{option: str(value)})
    return value


def ratio(refused: Refuse, option: str, value: object, *, least: float, most: float = math.inf, above: bool = False) -> float:
    """Returns a number from ``least``, or above it, to ``most``.

    Raises:
        RejectedError: The value is not such a number, or is not finite.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not (least < value if above else least <= value) or value > most:  # type: ignore[operator]  # a number
        wanted = f"{'above' if above else 'from'} {least}" + ("" if most == math.inf else f" to {most}")
        raise refused(f"{option}={value!r} is not a number {wanted}.", f"Give {option} such a number.", **{option: str(value)})
    return float(value)  # type: ignore[arg-type]  # a number


def flag(refused: Refuse, option: str, value: object) -> bool:
    """Returns True or False.

    Raises:
        RejectedError: The value is neither.
    """
    if not isinstance(value, bool):
        raise refused(f"{option}={value!r} is neither True nor False.", "Write True or False.", **{option: str(value)})
    return value


def choice(refused: Refuse, option: str, choices: type[E], value: object) -> E:
    """Returns the member of ``choices`` for a member or its text.

    Raises:
        RejectedError: The value is not one of them.
    """
    allowed = [choice.value for choice in choices]
    if value not in allowed:
        given = value.value if isinstance(value, StrEnum) else value
        raise refused(f"{option}={given!r} is unknown.", f"Choose one of: {', '.join(allowed)}.", **{option: str(given)})
    return choices(str(value))


def names(refused: Refuse, option: str, value: object) -> tuple[str, ...]:
    """Returns the names in a list, or in a text with commas. A template may have rendered a list to its text.

    Raises:
        RejectedError: The value is no list of names.
    """
    texts = [value.strip().strip("[]")] if isinstance(value, str) else value
    if not isinstance(texts, Collection) or isinstance(texts, Mapping) or not all(isinstance(each, str) for each in texts):
        problem = f"{option}={value!r} is not a list of names."
        raise refused(problem, "Give a list, or a text with commas.", **{option: str(value)})
    words = (word.strip().strip("'\"") for text in texts for word in text.split(","))
    return tuple(word for word in words if word)


def typed(value: object) -> object:
    """Returns the number, the truth value or None that a text stands for, as templates and forms write them; any other value as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return {"": None, "none": None, "true": True, "false": False}.get(text.lower(), text)


def templated(read: Reader) -> Reader:
    """Returns a reader that also takes the texts of templates and forms. It returns None for an empty text."""

    def read_typed(refused: Refuse, option: str, value: object) -> Any:
        found = typed(value)
        return None if found is None else read(refused, option, found)

    return read_typed


def _bounded(number: str) -> int:
    """Returns ``number``, or more than the longest interval for a long text. Python refuses to convert thousands of digits."""
    return int(number) if len(number) <= _MOST_DIGITS else INTERVAL_MAX_MS + 1
