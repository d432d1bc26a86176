"""When a pipeline's error is worth another try: by its branch in the error tree, never by its text."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_provider.exceptions import PipelineRunError
from spark_jobs.protocol.errors import Retry, StreamPipelineError

if TYPE_CHECKING:
    from airflow.sdk import Context

RETRIES = 3
"""Of a task that may be tried again at any time, because a next try takes up what is there. Airflow's own default is none."""


class Tries(Protocol):
    """What a task instance knows of its tries."""

    try_number: int
    max_tries: int


def is_automatic_retry(task: Tries, retries: int | None) -> bool:
    """Whether Airflow tries a task again by itself: neither for the first time, nor because somebody has cleared it.

    A clear raises ``max_tries`` so that the try after it has all ``retries`` again, as the first one had.
    """
    return task.try_number > max(1, task.max_tries - (retries or 0) + 1)


class PipelineRetryPolicy(RetryPolicy):
    """Retries at once what somebody else won, fails at once what would be refused again, and leaves the rest to the task.

    "The rest" waits as ``retry_delay``, ``retry_exponential_backoff`` and ``max_retry_delay`` say. No policy goes beyond ``retries``;
    and Airflow asks none where there is no exception: a worker that is lost is retried as ``retries`` say. Errors that are not a
    pipeline's are treated as without a policy.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: "Context | None" = None
    ) -> RetryDecision:
        """What follows from the error; the reason goes into the task's log and its history."""
        error = exception.error if isinstance(exception, PipelineRunError) else exception
        if not isinstance(error, StreamPipelineError):
            return RetryDecision.default()
        name = type(error).__name__
        match error.retry:
            case Retry.NEVER:
                return RetryDecision.fail(f"{name}: the next try would meet it again")
            case Retry.AT_ONCE:
                return RetryDecision.retry(timedelta(0), f"{name}: look again at once")
        return RetryDecision.retry(None, f"{name}: a next try goes on from what is durable")

    def serialize(self) -> dict[str, Any]:
        """Nothing: it has no settings."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "PipelineRetryPolicy":
        """The policy."""
        return cls()
