"""Airflow's exceptions for the errors of a pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider.version_compat import AirflowException, AirflowFailException
from spark_jobs.protocol.errors import Retry, StreamPipelineError
from spark_jobs.protocol.visible import visible


class PipelineRunError(AirflowException):
    """A run that did not succeed.

    Airflow retries the task as its ``retries`` allow. A retry resumes the work, or waits for the running driver.

    Args:
        error: The pipeline's error, with its evidence as fields.
    """

    def __init__(self, error: StreamPipelineError) -> None:
        parts = (("Exists", error.exists), ("Safe", error.safe), ("To do", error.remedy), ("Read", error.documentation))
        lines = [f"{type(error).__name__}: {error.failed}", *(f"{title}: {text}" for title, text in parts if text)]
        super().__init__(visible("\n".join(lines)))
        self.error = error

    def __reduce__(self) -> tuple[type["PipelineRunError"], tuple[StreamPipelineError]]:
        return type(self), (self.error,)


class PipelineRunRefusedError(PipelineRunError, AirflowFailException):
    """An error that a retry would meet again. Airflow fails the task at once, whatever its ``retries``."""


def airflow_error(error: StreamPipelineError) -> PipelineRunError:
    """Returns the exception for an error. The error's type decides, never its text."""
    return PipelineRunRefusedError(error) if error.retry is Retry.NEVER else PipelineRunError(error)


@contextmanager
def raising_airflow_errors() -> Iterator[None]:
    """A context that raises a pipeline's error as an Airflow exception."""
    try:
        yield
    except StreamPipelineError as error:
        raise airflow_error(error) from error
