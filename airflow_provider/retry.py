"""When a pipeline's error is worth another try: by its branch in the error tree, never by its text."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider.exceptions import PipelineRunError
from airflow_provider.version_compat import RetryDecision, RetryPolicy
from spark_jobs.protocol.errors import Retry, StreamPipelineError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

_DOUBLED_MOST = 30
_LONGEST = timedelta(minutes=10)
"""Of a pause, unless the task says otherwise."""
RETRIES = 3
"""Of a task that may be tried again at any time, because a next try takes up what is there. Airflow's own default is none."""


class Tries(Protocol):
    """What a task instance knows of its tries."""

    try_number: int
    max_tries: int


def is_automatic_retry(task: Tries, retries: int | None) -> bool:
    """Whether Airflow tries a task again by itself: neither for the first time, nor because somebody has cleared it."""
    return task.try_number > first_try(task.max_tries, retries)


def first_try(max_tries: int, retries: int | None) -> int:
    """The number of the try since which Airflow counts ``retries``.

    A clear raises ``max_tries`` so that the try after it has all of them again, as the first one had.
    """
    return max(1, max_tries - (retries or 0) + 1)


class PipelineRetryPolicy(RetryPolicy):
    """Retries at once what somebody else won, fails at once what would be refused again, and the rest with backoff.

    "The rest" waits for the task's ``retry_delay``, and after each further try twice as long, up to ``max_retry_delay`` or ten minutes; a
    task with ``retry_exponential_backoff`` has a backoff of its own, which counts. No policy goes beyond ``retries``; and Airflow asks none
    where there is no exception: a worker that is lost is retried as ``retries`` say. Errors that are not a pipeline's are treated as
    without a policy.

    Raises:
        MissingRequirementError: This Airflow, below 3.3, has no retry policies.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: "Context | None" = None
    ) -> "RetryDecision":
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
        delay = None if context is None else _delay(context["task"], try_number, max_tries)
        return RetryDecision.retry(delay, f"{name}: a next try may find it mended, and goes on from what is durable")

    def serialize(self) -> dict[str, Any]:
        """Nothing: it has no settings."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "PipelineRetryPolicy":
        """The policy."""
        return cls()


def _delay(task: "BaseOperator | MappedOperator", try_number: int, max_tries: int) -> timedelta | None:
    """The pause after a try; None: as the task has it."""
    if task.retry_exponential_backoff:
        return None
    first, longest = _duration(task.retry_delay), _duration(task.max_retry_delay or _LONGEST)
    doubled = max(0, try_number - first_try(max_tries, task.retries))
    return min(max(first, longest), first * (1 << min(doubled, _DOUBLED_MOST)))


def _duration(given: timedelta | float) -> timedelta:
    return given if isinstance(given, timedelta) else timedelta(seconds=given)
