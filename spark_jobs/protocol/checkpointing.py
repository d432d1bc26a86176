"""When checkpoints are taken and how many are kept, as it is stored, and how one run overrides it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.options import Refuse, flag, interval_ms, whole_number

NEVER: Literal["never"] = "never"
"""As ``aligned_timeout``: an aligned checkpoint does not become an unaligned one, however long it waits."""


class Checkpointing(Part):
    """When checkpoints are taken, and how many are kept; checked."""

    interval_ms: int
    """From one checkpoint's beginning to the next one's."""
    timeout_ms: int
    """A try that has taken this long, over every step up to its manifest, has failed; publication does not count."""
    min_pause_ms: int
    """From one checkpoint's end to the next one's beginning, at least."""
    tolerable_failures: int | None
    """So many tries in a row may fail; one more ends the attempt. None: any number, as long as another try may succeed."""
    retained: int
    """How many complete checkpoints are kept."""
    unaligned: bool
    """Whether no stage waits for what is in flight: it belongs to the checkpoint."""
    aligned_timeout_ms: int | Literal["never"] | None
    """After this long an aligned checkpoint becomes an unaligned one; None: see :attr:`aligned_at_most_ms`."""
    max_in_flight_bytes: int | None
    """An aligned checkpoint that would have to wait for more than this becomes an unaligned one; None: whatever is in flight."""
    second_copy: bool = False
    """Whether the home has the bytes of state files a second time, also where it could have a second name of the first."""

    @property
    def aligned_at_most_ms(self) -> int | None:
        """How long an aligned checkpoint waits until it becomes an unaligned one; None: as long as it may take.

        By default half of the interval, so that stages are held for half of the time at most, and half of a timeout that is shorter.
        """
        if self.aligned_timeout_ms == NEVER:
            return None
        return min(self.interval_ms, self.timeout_ms) // 2 if self.aligned_timeout_ms is None else self.aligned_timeout_ms


class CheckpointOverrides(Part):
    """What a run wants otherwise; the fields of :class:`Checkpointing`. None: as it was."""

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
"""By the name that people write the name that is stored, and how its value is read."""
SETTINGS: tuple[str, ...] = tuple(_READ)
"""The names that people write."""
_LIMITS = ("aligned_timeout", "max_in_flight_bytes")
"""When an aligned checkpoint becomes an unaligned one."""
_OPTIONAL = (*_LIMITS, "tolerable_failures")
_STORED = tuple(CheckpointOverrides.model_fields)
_ALIGNMENT = {"unaligned", *(_READ[name][0] for name in _LIMITS)}


def read_checkpointing(refused: Refuse, given: Mapping[str, object]) -> Checkpointing:
    """All settings as people write them, checked; only ``aligned_timeout``, ``max_in_flight_bytes`` and ``tolerable_failures`` may be None.

    Raises:
        RejectedError: One is not what it has to be, or two contradict each other.
    """
    absent = {_READ[name][0]: None for name in _OPTIONAL}
    found = _read(refused, {name: value for name, value in given.items() if name not in _OPTIONAL or value is not None})
    return _checked(refused, Checkpointing(**(absent | found)))


def read_overrides(refused: Refuse, given: Mapping[str, object]) -> CheckpointOverrides:
    """Some settings as people write them, checked as far as they can be without the pipeline's; None counts as not given.

    Raises:
        RejectedError: One is unknown or not what it has to be, or two contradict each other.
    """
    return CheckpointOverrides(**_read(refused, {name: value for name, value in given.items() if value is not None}))


def over(lower: CheckpointOverrides | None, upper: CheckpointOverrides | None) -> CheckpointOverrides | None:
    """Both overrides, field by field; where both say something, ``upper``. See :func:`overridden`."""
    if lower is None or upper is None:
        return upper or lower
    return CheckpointOverrides(**_merged(lower, upper))


def overridden(refused: Refuse, settings: Checkpointing, overrides: CheckpointOverrides | None) -> Checkpointing:
    """The settings of one run: those of ``overrides``, else the pipeline's.

    How checkpoints are aligned is one choice: overrides that say ``unaligned``, ``aligned_timeout`` or ``max_in_flight_bytes`` say
    all three, and those that they leave out are as by default.

    Raises:
        RejectedError: Together they make no sense.
    """
    return settings if overrides is None else _checked(refused, Checkpointing(**_merged(settings, overrides)))


def _read(refused: Refuse, given: Mapping[str, object]) -> dict[str, Any]:
    for name in given:
        if name not in _READ:
            raise refused(f"{name!r} is not one of the settings.", f"Known are: {', '.join(_READ)}.", setting=str(name))
    limits = [name for name in _LIMITS if name in given]
    if given.get("unaligned") is True and limits:
        raise refused(
            f"{limits[0]}= says when an aligned checkpoint becomes an unaligned one, and with unaligned=True all are.",
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
