"""The branch of an error decides whether there is another try, and when."""

from datetime import timedelta

import pytest
from airflow.sdk import RetryAction

from airflow_provider.exceptions import airflow_error
from airflow_provider.retry import PipelineRetryPolicy
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDocumentError,
    DeadlineExceededError,
    HomeInUseError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)

AT_ONCE = timedelta(0)


@pytest.mark.parametrize(
    ("kind", "action", "delay"),
    [
        (RejectedError, RetryAction.FAIL, None),
        (CorruptDocumentError, RetryAction.FAIL, None),
        (ConflictError, RetryAction.RETRY, AT_ONCE),
        (AlreadyExistsError, RetryAction.RETRY, AT_ONCE),
        (OutcomeUnknownError, RetryAction.RETRY, AT_ONCE),
        (StorageError, RetryAction.RETRY, None),
        (StorageFullError, RetryAction.RETRY, None),
        (DeadlineExceededError, RetryAction.RETRY, None),
        (InterruptedRunError, RetryAction.RETRY, None),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_branch_decides(kind: type[StreamPipelineError], action: RetryAction, delay: timedelta | None, wrapped: bool) -> None:
    error = kind("It failed: retry never.")
    decision = PipelineRetryPolicy().evaluate(airflow_error(error) if wrapped else error, 1, 3)
    assert (decision.action, decision.retry_delay) == (action, delay)
    assert decision.reason is not None
    assert decision.reason.startswith(f"{kind.__name__}: ")


def test_a_home_that_stays_in_use_does_not_eat_all_retries_at_once() -> None:
    delays = [PipelineRetryPolicy().evaluate(HomeInUseError("It is in use."), tried, 3).retry_delay for tried in (1, 2, 3)]
    assert delays == [None, None, None]


def test_other_errors_are_treated_as_without_a_policy() -> None:
    assert PipelineRetryPolicy().evaluate(ValueError("no pipeline's"), 1, 3).action is RetryAction.DEFAULT


def test_it_has_no_settings_to_lose() -> None:
    assert isinstance(PipelineRetryPolicy.deserialize(PipelineRetryPolicy().serialize()), PipelineRetryPolicy)
