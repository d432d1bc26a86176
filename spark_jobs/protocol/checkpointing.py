"""The stored checkpoint settings, and their overrides by a run."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.options import Refuse, flag, interval_ms, typed, whole_number

NEVER: Literal["never"] = "never"
"""The value of ``aligned_timeout`` for an aligned checkpoint that never becomes an unaligned one."""


class Checkpointing(Part):
    """The checked checkpoint settings."""

    interval_ms: int
    """Time from the beginning of one checkpoint to the beginning of the next."""
    timeout_ms: int
    """Time limit of a try, from its first step to its manifest. The publication does not count."""
    min_pause_ms: int
    """Minimum time from the end of one checkpoint to the beginning of the next."""
    tolerable_failures: int | None
    """Number of tries in a row that may fail; one more ends the attempt. None: any number, while another try may succeed."""
    retained: int
    """Number of complete checkpoints to keep."""
    unaligned: bool
    """True if no stage waits for rows in flight: they belong to the checkpoint."""
    aligned_timeout_ms: int | Literal["never"] | None
    """Time after which an aligned checkpoint becomes an unaligned one. None: see :attr:`aligned_at_most_ms`."""
    max_in_flight_bytes: int | None
    """An aligned checkpoint that has to wait for more bytes becomes an unaligned one. None: no limit."""
    second_copy: bool = False
    """True if the home always keeps its own copy of state files. Otherwise it uses hard links where possible."""

    @property
    def aligned_at_most_ms(self) -> int | None:
        """The time after which an aligned checkpoint becomes an unaligned one. None: never.

        The default is half of the interval, so that stages are held for half of the time at most, or half of a shorter timeout.
        """
        if self.aligned_timeout_ms == NEVER:
            return None
        return min(self.interval_ms, self.timeout_ms) // 2 if self.aligned_timeout_ms is None else self.aligned_timeout_ms


class CheckpointOverrides(Part):
    """The checkpoint settings that a run overrides; the fields of :class:`Checkpointing`. None: not overridden."""

    interval_ms: int | None = None
    timeout_ms: int | None = None
    min_pause_ms: int | None = None
    tolerable_failures: int | None = None
    retained: int | None = None
    unaligned: bool | None = None
    aligned_timeout_ms: int | Literal["never"] | None = None
    max_in_flight_bytes: int | None = None
    second_copy: bool | None = None


_AT_LEAST_1_MS = partial(interval_ms, least_ms=1)


def _interval_or_never(refused: Refuse, option: str, value: object) -> int | Literal["never"]:
    return NEVER if value == NEVER else _AT_LEAST_1_MS(refused, option, value)


_READ: Mapping[str, tuple[str, Callable[[Refuse, str, object], Any]]] = {
    "interval": ("interval_ms", _AT_LEAST_1_MS),
    "timeout": ("timeout_ms", _AT_LEAST_1_MS),
    "min_pause": ("min_pause_ms", interval_ms),
    "tolerable_failures": ("tolerable_failures", partial(whole_number, least=0)),
    "retained": ("retained", partial(whole_number, least=1)),
    "unaligned": ("unaligned", flag),
    "aligned_timeout": ("aligned_timeout_ms", _interval_or_never),
    "max_in_flight_bytes": ("max_in_flight_bytes", partial(whole_number, least=1)),
    "second_copy": ("second_copy", flag),
}
"""The stored name and the reader of each setting, by the name that people write."""
SETTINGS: tuple[str, ...] = tuple(_READ)
"""The names that people write."""
_LIMITS = ("aligned_timeout", "max_in_flight_bytes")
"""The settings that limit the alignment."""
_OPTIONAL = (*_LIMITS, "tolerable_failures")
_STORED = tuple(CheckpointOverrides.model_fields)
_ALIGNMENT = {"unaligned", *(_READ[name][0] for name in _LIMITS)}


def read_checkpointing(refused: Refuse, given: Mapping[str, object]) -> Checkpointing:
    """Returns all settings, checked. Only ``aligned_timeout``, ``max_in_flight_bytes`` and ``tolerable_failures`` may be None.

    Raises:
        RejectedError: A setting is not allowed, or two settings contradict each other.
    """
    absent = {_READ[name][0]: None for name in _OPTIONAL}
    found = _read(refused, {name: value for name, value in given.items() if name not in _OPTIONAL or value is not None})
    return _checked(refused, Checkpointing(**(absent | found)))


def read_overrides(refused: Refuse, given: Mapping[str, object]) -> CheckpointOverrides:
    """Returns some settings that people wrote, checked without those of the pipeline. None counts as not given.

    Raises:
        RejectedError: A setting is unknown or not allowed, or two settings contradict each other.
    """
    return CheckpointOverrides(**_read(refused, {name: value for name, value in given.items() if value is not None}))


def written_overrides(refused: Refuse, given: object) -> CheckpointOverrides | None:
    """Returns overrides of checkpoint settings, by the names of ``CheckpointSettings``; None if there are none.

    Templates and forms may give texts: JSON for all settings, or texts for whole numbers, ``true`` and ``false``. Empty values are not
    given.

    Raises:
        RejectedError: The value is no mapping of settings, or a setting is invalid, or two settings contradict each other.
    """
    if isinstance(given, str):
        with suppress(ValueError):  # any other text is refused below
            given = json.loads(given) if given.strip() else {}
    if not isinstance(given, Mapping | None):
        raise refused(f"{given!r} is not a mapping.", 'Write {"interval": "30 seconds"}, or leave it out.')
    said = {name: value for name, text in (given or {}).items() if (value := typed(text)) is not None}
    return read_overrides(refused, said) if said else None


def over(lower: CheckpointOverrides | None, upper: CheckpointOverrides | None) -> CheckpointOverrides | None:
    """Returns both overrides, field by field. If both have a value, ``upper`` wins. See :func:`overridden`."""
    if lower is None or upper is None:
        return upper or lower
    return CheckpointOverrides(**_merged(lower, upper))


def overridden(refused: Refuse, settings: Checkpointing, overrides: CheckpointOverrides | None) -> Checkpointing:
    """Returns the settings of one run: those of ``overrides``, otherwise the pipeline's.

    The alignment is one choice. Overrides with ``unaligned``, ``aligned_timeout`` or ``max_in_flight_bytes`` override all three, and those
    that they leave out get their defaults.

    Raises:
        RejectedError: The combined settings contradict each other.
    """
    return settings if overrides is None else _checked(refused, Checkpointing(**_merged(settings, overrides)))


def _read(refused: Refuse, given: Mapping[str, object]) -> dict[str, Any]:
    for name in given:
        if name not in _READ:
            raise refused(f"{name!r} is not a setting.", f"Known are: {', '.join(_READ)}.", setting=str(name))
    limits = [name for name in _LIMITS if name in given]
    if given.get("unaligned") is True and limits:
        raise refused(
            f"{limits[0]}= is for aligned checkpoints, but with unaligned=True all are unaligned.",
            f"Remove unaligned, or remove {limits[0]}.",
            settings=["unaligned", *limits],
        )
    return {_READ[name][0]: _READ[name][1](refused, name, value) for name, value in given.items()}


def _merged(lower: Part, upper: CheckpointOverrides) -> dict[str, Any]:
    given = {name: value for name in _STORED if (value := getattr(upper, name)) is not None}
    kept = {name: getattr(lower, name) for name in _STORED}
    if _ALIGNMENT & given.keys():
        kept |= dict.fromkeys(_ALIGNMENT) | {"unaligned": False}
    return kept | given


def _checked(refused: Refuse, settings: Checkpointing) -> Checkpointing:
    if isinstance(settings.aligned_timeout_ms, int) and settings.aligned_timeout_ms >= settings.timeout_ms:
        raise refused(
            f"aligned_timeout ({settings.aligned_timeout_ms} ms) is not shorter than timeout ({settings.timeout_ms} ms): "
            "a checkpoint would fail before it could become an unaligned one.",
            f"Give a shorter aligned_timeout, a longer timeout, or aligned_timeout='{NEVER}'.",
            aligned_timeout_ms=settings.aligned_timeout_ms,
            timeout_ms=settings.timeout_ms,
        )
    return settings
