"""What a task wants from a pipeline, checked as far as the Airflow side can."""

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
from spark_jobs.protocol.ids import InputName, RunId
from spark_jobs.protocol.restarts import RestartHistory

E = TypeVar("E", bound=StrEnum)
_MOST_DIGITS = 18


@dataclass(frozen=True)
class StartOrder:
    """What somebody wants from a pipeline, and how its driver is started."""

    entry: str
    """``FILE.py[:NAME]`` or ``package.module[:NAME]``, where the driver runs."""
    run: RunId
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Without secrets: they are written into the home."""
    on_end: OnEnd | None = None
    publish: Publish | None = None
    fresh: bool = False
    restore: RestoreFrom | None = None
    """The savepoint to begin with, inside the home roots."""
    state_partitions: int | None = None
    allow_dropped: bool = False
    new_sources: tuple[InputName, ...] = ()
    accept_data_loss: tuple[InputName, ...] = ()
    on_rewind: OnRewind = OnRewind.REFUSE
    checkpoint: CheckpointOverrides | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Parameter name to the id of the Airflow connection whose password is its value."""
    restarts: RestartHistory | None = None
    """What the pipeline's restart strategy remembers, where it has decided on this start."""


def choice(name: str, value: str | None, kind: type[E]) -> E | None:
    """One of the values of an argument; None where it is empty.

    Raises:
        InvalidParameterError: It is another one.
    """
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        raise _invalid(name, value, f"one of {', '.join(kind)}") from None


def is_true(value: bool | str) -> bool:
    """The value of an argument that a template may have turned into a text: one is true if it is ``true``, whatever its case."""
    return str(value).strip().lower() == "true"


def count(name: str, value: int | str | None) -> int | None:
    """The value of an argument that says how many, which a template may have turned into a text; None where it is empty.

    Raises:
        InvalidParameterError: It is no whole number from 1 on.
    """
    found = _typed(value) if isinstance(value, str) else value
    if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
        raise _invalid(name, value, "a whole number from 1 on")
    return found


def names(name: str, value: Sequence[str] | str | None) -> tuple[InputName, ...]:
    """The value of an argument that names some sources. A template may have turned it into a text, with commas or as JSON.

    Raises:
        InvalidParameterError: It is no list of names.
    """
    found: object = value
    if isinstance(value, str):
        found = [word.strip().strip("'\"") for word in value.strip().strip("[]").split(",") if word.strip()]
    if found is not None and (not isinstance(found, list | tuple) or not all(isinstance(each, str) and each for each in found)):
        raise _invalid(name, value, "a list of names")
    return tuple(InputName(each) for each in found or ())


def mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The value of an argument that templates may have turned into something else.

    Raises:
        InvalidParameterError: They have.
    """
    if not isinstance(value, Mapping | None):
        raise _invalid(name, value, "a mapping")
    return value or {}


def checkpoint_overrides(where: str, given: object) -> CheckpointOverrides | None:
    """What is said about checkpoints, by the names of ``CheckpointSettings``; None where nothing is.

    Templates and forms give texts: all may be JSON, and whole numbers, ``true`` and ``false`` may be texts; empty ones are not given.

    Raises:
        InvalidParameterError: It is no mapping of settings, a value is not what it has to be, or two contradict each other.
    """

    def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
        return InvalidParameterError(f"{where}: {problem}", safe="Nothing was started.", remedy=remedy, **evidence)

    if isinstance(given, str):
        with suppress(ValueError):  # what else a text is, is refused below
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
    """The values of parameters, as a request can hold them.

    Raises:
        InvalidParameterError: One is no JSON value.
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


def check_waits(wait_for: str, poll_interval_s: float, timeout_s: float | None, start_timeout_s: float) -> None:
    """Refuses arguments of a wait that make none.

    Raises:
        ValueError: One of them does.
    """
    if wait_for not in list(WaitFor):
        raise ValueError(f"wait_for={wait_for!r} is not one of {', '.join(WaitFor)}.")
    if poll_interval_s <= 0 or (timeout_s is not None and timeout_s <= 0) or start_timeout_s <= 0:
        raise ValueError("poll_interval_s, timeout_s and start_timeout_s are above 0.")
