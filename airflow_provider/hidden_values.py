"""Keeps what Airflow hides out of what is written down: a task's arguments are recorded in the home, and shown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]  # from where Airflow's own providers have it

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.masking import hidden_pieces


class _Task(Protocol):
    template_fields: Sequence[str]


def hide(secret: str) -> None:
    """Has Airflow mask a secret, and each of its parts, in logs, rendered templates and XComs of this process from here on."""
    for piece in hidden_pieces(secret):
        mask_secret(piece)


def refuse_hidden_arguments(task: _Task) -> None:
    """Refuses a task with a value that Airflow masks in logs in one of its arguments that may be templates, once they were rendered.

    Raises:
        InvalidParameterError: As :func:`refuse_hidden`.
    """
    refuse_hidden(**{name: getattr(task, name) for name in task.template_fields})


def refuse_hidden(**arguments: Any) -> None:
    """Refuses arguments with a value that Airflow masks in logs, such as a template's password of a connection.

    Args:
        arguments: By name what was given; looked through at any depth.

    Raises:
        InvalidParameterError: Names the arguments, not the values.
    """
    found = sorted({where for name, value in arguments.items() for where, text in _texts(name, value) if redact(text) != text})
    if found:
        raise InvalidParameterError(
            f"Airflow hides a value of {', '.join(found)}: it would be written into the pipeline's home for everybody to read.",
            safe="Nothing was started, and nothing was written.",
            remedy="Make it a secret parameter of the pipeline, and name its connection in secrets= of the task.",
            arguments=found,
        )


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(where, key)
            yield from _texts(f"{where}.{redact(key)}", each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts(where, each)
