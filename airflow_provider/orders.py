"""What a task wants from a pipeline, checked as far as the Airflow side can."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import RunId

E = TypeVar("E", bound=StrEnum)


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
    on_rewind: OnRewind = OnRewind.REFUSE
    conf: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Parameter name to the id of the Airflow connection whose password is its value."""


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


def mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The value of an argument that templates may have turned into something else.

    Raises:
        InvalidParameterError: They have.
    """
    if not isinstance(value, Mapping | None):
        raise _invalid(name, value, "a mapping")
    return value or {}


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
