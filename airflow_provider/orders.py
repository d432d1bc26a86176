"""The order of a task: its arguments as typed and checked values."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from airflow_provider.waits.goals import WaitFor
from spark_jobs.protocol.checkpointing import CheckpointOverrides, written_overrides
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import CheckpointId, RunId
from spark_jobs.protocol.options import flag, templated, whole_number
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.start_requests import StartOptions


class StartOrder(StartOptions):
    """The arguments with which a task starts a pipeline."""

    entry: str
    """``FILE.py[:NAME]`` or ``package.module[:NAME]``, on the driver's host."""
    run: RunId
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """The parameters without secrets, because they are written into the home."""
    conf: Mapping[str, str] = Field(default_factory=dict)
    secrets: Mapping[str, str] = Field(default_factory=dict)
    """By parameter name, the id of the Airflow connection whose password is the value."""
    restarts: RestartHistory | None = None
    """The history of the pipeline's restart strategy, if the strategy has decided on this start."""


def is_true(name: str, value: bool | str) -> bool:
    """Returns the value of a boolean argument that a template may have rendered to a text; False if it is empty.

    Raises:
        InvalidParameterError: The value is neither true nor false.
    """
    return bool(templated(flag)(refused, name, value))


def checkpoint_number(name: str, value: int | str | None) -> CheckpointId | None:
    """Returns the number of a checkpoint in an argument that a template may have rendered to a text; None if it is empty.

    Raises:
        InvalidParameterError: The value is no whole number from 0 on.
    """

    def refused_number(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
        return refused(f"{name}={value!r} is not the number of a checkpoint.", f"Correct {name}= of the task.", argument=name)

    found = templated(partial(whole_number, least=0))(refused_number, name, value)
    return None if found is None else CheckpointId(found)


def mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns a mapping argument; empty if it is None.

    Raises:
        InvalidParameterError: Templates have rendered it to something else.
    """
    if not isinstance(value, Mapping | None):
        raise refused(f"{name}={value!r} is not a mapping.", f"Correct {name}= of the task.", argument=name)
    return value or {}


def checkpoint_overrides(where: str, given: object) -> CheckpointOverrides | None:
    """Returns overrides of checkpoint settings; see :func:`~spark_jobs.protocol.checkpointing.written_overrides`.

    Raises:
        InvalidParameterError: A setting is invalid. The error says where it is.
    """

    def refused_setting(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
        return refused(f"{where}: {problem}", remedy, **evidence)

    return written_overrides(refused_setting, given)


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


def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    """Returns the error for an argument of a task."""
    return InvalidParameterError(problem, remedy=remedy, **evidence)


def check_waits(wait_for: str, timeout_s: float | None, start_timeout_s: float) -> None:
    """Checks the arguments of a wait.

    Raises:
        ValueError: One of them is invalid.
    """
    if wait_for not in list(WaitFor):
        raise ValueError(f"wait_for={wait_for!r} is not one of {', '.join(WaitFor)}.")
    if (timeout_s is not None and timeout_s <= 0) or start_timeout_s <= 0:
        raise ValueError("timeout_s and start_timeout_s have to be above 0.")
