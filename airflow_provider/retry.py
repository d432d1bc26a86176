"""Decides whether a task retries after a pipeline's error: by the error's type, never by its text."""

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
"""The longest pause, unless the task sets one."""
RETRIES = 3
"""The default for tasks of this provider. A retry is safe at any time because it continues existing work. Airflow's own default is 0."""


class Tries(Protocol):
    """A task instance, as far as its tries are concerned."""

    try_number: int
    max_tries: int


def is_automatic_retry(task: Tries, retries: int | None) -> bool:
    """Returns True if this try is an automatic retry, and not the first try or the first one after the task was cleared."""
    return task.try_number > first_try(task.max_tries, retries)


def first_try(max_tries: int, retries: int | None) -> int:
    """Returns the number of the first try since the task was created or cleared.

    Clearing a task raises ``max_tries``, so that it has all its ``retries`` again.
    """
    return max(1, max_tries - (retries or 0) + 1)


class PipelineRetryPolicy(RetryPolicy):
    """A retry policy for pipelines.

    It retries at once after losing a race, fails at once on an error that a retry would meet again, and retries other errors with
    backoff. The pause is the task's ``retry_delay`` and doubles with each try, up to ``max_retry_delay`` or ten minutes. A task with
    ``retry_exponential_backoff`` uses Airflow's own backoff instead.

    The policy never exceeds ``retries``. If a worker is lost without an exception, Airflow asks no policy: then ``retries`` alone
    decides. Errors that are not a pipeline's are treated as without a policy.

    Raises:
        MissingRequirementError: This Airflow is below 3.3 and has no retry policies.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: "Context | None" = None
    ) -> "RetryDecision":
        """Returns the decision for an error. Airflow shows its reason in the task's log and history."""
        error = exception.error if isinstance(exception, PipelineRunError) else exception
        if not isinstance(error, StreamPipelineError):
            return RetryDecision.default()
        name = type(error).__name__
        match error.retry:
            case Retry.NEVER:
                return RetryDecision.fail(f"{name}: a retry would fail with the same error")
            case Retry.AT_ONCE:
                return RetryDecision.retry(timedelta(0), f"{name}: retry at once")
        delay = None if context is None else _delay(context["task"], try_number, max_tries)
        return RetryDecision.retry(delay, f"{name}: a retry continues from what is durable")

    def serialize(self) -> dict[str, Any]:
        """Returns no arguments: the policy has no settings."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "PipelineRetryPolicy":
        """Returns a new policy."""
        return cls()


def _delay(task: "BaseOperator | MappedOperator", try_number: int, max_tries: int) -> timedelta | None:
    """Returns the pause after a try; None: the task's own."""
    if task.retry_exponential_backoff:
        return None
    first, longest = _duration(task.retry_delay), _duration(task.max_retry_delay or _LONGEST)
    doubled = max(0, try_number - first_try(max_tries, task.retries))
    return min(max(first, longest), first * (1 << min(doubled, _DOUBLED_MOST)))


def _duration(given: timedelta | float) -> timedelta:
    return given if isinstance(given, timedelta) else timedelta(seconds=given)
