"""The order of a task: its arguments as typed and checked values."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from airflow_provider.waits.goals import WaitFor
from spark_jobs.protocol.checkpointing import CheckpointOverrides, read_overrides
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import CheckpointId, InputName, LossId, RunId
from spark_jobs.protocol.restarts import RestartHistory

E = TypeVar("E", bound=StrEnum)
_MOST_DIGITS = 18


@dataclass(frozen=True)
class StartOrder:
    """The arguments with which a pipeline is started."""

    entry: str
    """``FILE.py[:NAME]`` or ``package.module[:NAME]``, on the driver's host."""
    run: RunId
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters without secrets, because they are written into the home."""
    on_end: OnEnd | None = None
    publish: Publish | None = None
    fresh: bool = False
    restore: RestoreFrom | None = None
    """The savepoint to start from."""
    state_partitions: int | None = None
    allow_dropped: bool = False
    new_sources: tuple[InputName, ...] = ()
    full_refresh: tuple[str, ...] = ()
    accept_data_loss: tuple[InputName, ...] = ()
    backfill: tuple[LossId, ...] = ()
    on_rewind: OnRewind = OnRewind.REFUSE
    checkpoint: CheckpointOverrides | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By parameter name, the id of the Airflow connection whose password is the value."""
    restarts: RestartHistory | None = None
    """The history of the pipeline's restart strategy, if the strategy has decided on this start."""


def choice(name: str, value: str | None, kind: type[E]) -> E | None:
    """Returns the enumeration member for an argument; None if the argument is empty.

    Raises:
        InvalidParameterError: There is no such member.
    """
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        raise _invalid(name, value, f"one of {', '.join(kind)}") from None


def is_true(value: bool | str) -> bool:
    """Returns the value of a boolean argument that a template may have rendered to a text. Only the text ``true`` is true, in any case."""
    return str(value).strip().lower() == "true"


def count(name: str, value: int | str | None) -> int | None:
    """Returns the value of a number argument that a template may have rendered to a text; None if it is empty.

    Raises:
        InvalidParameterError: The value is no whole number from 1 on.
    """
    found = _typed(value) if isinstance(value, str) else value
    if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
        raise _invalid(name, value, "a whole number from 1 on")
    return found


def checkpoint_number(name: str, value: int | str | None) -> CheckpointId | None:
    """Returns the number of a checkpoint in an argument that a template may have rendered to a text; None if it is empty.

    Raises:
        InvalidParameterError: The value is no whole number from 0 on.
    """
    found = _typed(value) if isinstance(value, str) else value
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise _invalid(name, value, "the number of a checkpoint")
    return CheckpointId(found)


def names(name: str, value: Sequence[str] | str | None) -> tuple[InputName, ...]:
    """Returns the names in an argument. A template may have rendered it to a text with commas, or to JSON.

    Raises:
        InvalidParameterError: The value is no list of names.
    """
    found: object = value
    if isinstance(value, str):
        found = [word.strip().strip("'\"") for word in value.strip().strip("[]").split(",") if word.strip()]
    if found is not None and (not isinstance(found, list | tuple) or not all(isinstance(each, str) and each for each in found)):
        raise _invalid(name, value, "a list of names")
    return tuple(InputName(each) for each in found or ())


def mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns a mapping argument; empty if it is None.

    Raises:
        InvalidParameterError: Templates have rendered it to something else.
    """
    if not isinstance(value, Mapping | None):
        raise _invalid(name, value, "a mapping")
    return value or {}


def checkpoint_overrides(where: str, given: object) -> CheckpointOverrides | None:
    """Returns overrides of checkpoint settings, by the names of ``CheckpointSettings``; None if there are none.

    Templates and forms may give texts: JSON for all settings, or texts for whole numbers, ``true`` and ``false``. Empty values are not
    given.

    Raises:
        InvalidParameterError: The value is no mapping of settings, or a setting is invalid, or two settings contradict each other.
    """

    def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
        return InvalidParameterError(f"{where}: {problem}", safe="Nothing was started.", remedy=remedy, **evidence)

    if isinstance(given, str):
        with suppress(ValueError):  # any other text is refused below
            given = json.loads(given) if given.strip() else {}
    if not isinstance(given, Mapping | None):
        raise refused(f"{given!r} is not a mapping.", 'Write {"interval": "30 seconds"}, or leave it out.')
    said = {name: value for name, text in (given or {}).items() if (value := _typed(text)) is not None}
    return read_overrides(refused, said) if said else None


def _typed(value: object) -> object:
    text = value.strip() if isinstance(value, str) else None
    if text is None:
        return value
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return {"": None, "none": None, "true": True, "false": False}.get(text.lower(), text)


def json_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters as a request can store them.

    Raises:
        InvalidParameterError: A value is no JSON value.
    """
    values = dict(parameters)
    try:
        canonical(values)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"The parameters cannot be written as JSON: {error}.",
            safe="No driver was started.",
            remedy="Give texts, numbers, booleans, lists and objects.",
        ) from error
    return values


def _invalid(name: str, found: object, wanted: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{name}={found!r} is not {wanted}.", safe="Nothing was started.", remedy=f"Correct {name}= of the task.", argument=name
    )


def check_waits(wait_for: str, timeout_s: float | None, start_timeout_s: float) -> None:
    """Checks the arguments of a wait.

    Raises:
        ValueError: One of them is invalid.
    """
    if wait_for not in list(WaitFor):
        raise ValueError(f"wait_for={wait_for!r} is not one of {', '.join(WaitFor)}.")
    if (timeout_s is not None and timeout_s <= 0) or start_timeout_s <= 0:
        raise ValueError("timeout_s and start_timeout_s have to be above 0.")
