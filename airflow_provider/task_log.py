"""The log of tasks and triggers. Its messages quote rows, errors and documents, and so text of others."""

from typing import Any

from spark_jobs.protocol.visible import visible

_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


class VisibleLog:
    """Replaces hidden characters in the messages of a log.

    Args:
        log: Airflow's log.
    """

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_log":  # asked for by copies that are not complete yet
            raise AttributeError(name)
        found = getattr(self._log, name)
        if name not in _LEVELS:
            return found

        def write(message: object, *values: object, **fields: Any) -> None:
            text = visible(str(message) % values if values else str(message))
            found(text, **{key: visible(value) if isinstance(value, str) else value for key, value in fields.items()})

        return write


class LogsVisibly:
    """A mixin for operators, sensors and triggers. Hidden characters in the messages of their log are replaced by signs."""

    @property
    def log(self) -> Any:
        return VisibleLog(super().log)  # type: ignore[misc]
