"""What a task raises: the pipeline's own error, as an exception that Airflow knows what to do with."""

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider.version_compat import AirflowException, AirflowFailException
from spark_jobs.protocol.errors import Retry, StreamPipelineError


class PipelineRunError(AirflowException):
    """A run that did not succeed.

    Airflow retries it as the task's ``retries`` allow; a retry resumes, or takes up the live driver.

    Args:
        error: The pipeline's error, with its evidence as fields.
    """

    def __init__(self, error: StreamPipelineError) -> None:
        parts = (("Exists", error.exists), ("Safe", error.safe), ("To do", error.remedy))
        lines = [f"{type(error).__name__}: {error.failed}", *(f"{title}: {text}" for title, text in parts if text)]
        super().__init__("\n".join(lines))
        self.error = error

    def __reduce__(self) -> tuple[type["PipelineRunError"], tuple[StreamPipelineError]]:
        return type(self), (self.error,)


class PipelineRunRefusedError(PipelineRunError, AirflowFailException):
    """An error that the next try would meet again: Airflow fails the task at once, whatever its ``retries``."""


def airflow_error(error: StreamPipelineError) -> PipelineRunError:
    """The exception for an error of the tree. The branch decides, never the text."""
    return PipelineRunRefusedError(error) if error.retry is Retry.NEVER else PipelineRunError(error)


@contextmanager
def raising_airflow_errors() -> Iterator[None]:
    """Errors of the tree leave the context as Airflow's exceptions."""
    try:
        yield
    except StreamPipelineError as error:
        raise airflow_error(error) from error
