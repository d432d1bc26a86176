"""Keeps secrets out of a task's arguments, which are stored in the home and shown on pages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]  # from where Airflow's own providers have it

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.masking import hidden_pieces


class _Task(Protocol):
    template_fields: Sequence[str]


def hide(secret: str) -> None:
    """Masks a secret and its parts in this process's logs, rendered templates and XComs from now on."""
    for piece in hidden_pieces(secret):
        mask_secret(piece)


def refuse_hidden_arguments(task: _Task) -> None:
    """Refuses a task if a rendered template field contains a value that Airflow masks in logs.

    Raises:
        InvalidParameterError: See :func:`refuse_hidden`.
    """
    refuse_hidden(**{name: getattr(task, name) for name in task.template_fields})


def refuse_hidden(**arguments: Any) -> None:
    """Refuses arguments that contain a value which Airflow masks in logs, such as a connection's password from a template.

    Args:
        arguments: The arguments by name; nested values are checked, too.

    Raises:
        InvalidParameterError: Names the arguments, not the values.
    """
    found = sorted({where for name, value in arguments.items() for where, text in _texts(name, value) if redact(text) != text})
    if found:
        raise InvalidParameterError(
            f"Airflow masks a value of {', '.join(found)}, but the pipeline's home would show it to all its readers.",
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
