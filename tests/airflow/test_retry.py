"""The branch of an error decides whether and when a task is retried."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import BaseOperator, Context, RetryAction

from airflow_provider.exceptions import airflow_error
from airflow_provider.retry import PipelineRetryPolicy, is_automatic_retry
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDocumentError,
    DeadlineExceededError,
    HomeInUseError,
    IncompleteError,
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
        (IncompleteError, RetryAction.RETRY, None),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_branch_of_an_error_decides_about_a_retry(
    kind: type[StreamPipelineError], action: RetryAction, delay: timedelta | None, wrapped: bool
) -> None:
    error = kind("It failed: retry never.")
    decision = PipelineRetryPolicy().evaluate(airflow_error(error) if wrapped else error, 1, 3)
    assert (decision.action, decision.retry_delay) == (action, delay)
    assert decision.reason is not None
    assert decision.reason.startswith(f"{kind.__name__}: ")


def test_a_home_that_stays_in_use_does_not_use_up_all_retries_at_once() -> None:
    delays = [PipelineRetryPolicy().evaluate(HomeInUseError("It is in use."), tried, 3).retry_delay for tried in (1, 2, 3)]
    assert delays == [None, None, None]


@pytest.mark.parametrize(
    ("settings", "delays_min"),
    [
        ({}, [5, 10, 10, 10]),  # Airflow's own delay, limited by ours
        ({"retry_delay": timedelta(minutes=1)}, [1, 2, 4, 8]),
        ({"retry_delay": timedelta(minutes=1), "max_retry_delay": timedelta(minutes=3)}, [1, 2, 3, 3]),
        ({"retry_delay": timedelta(minutes=30)}, [30, 30, 30, 30]),
        ({"retry_delay": timedelta(minutes=1), "retry_exponential_backoff": 3.0}, [None, None, None, None]),
    ],
)
@pytest.mark.parametrize("tries_before_a_clear", [0, 3])
def test_an_error_that_may_heal_is_retried_after_growing_pauses(
    settings: dict[str, Any], delays_min: list[int | None], tries_before_a_clear: int
) -> None:
    task = BaseOperator(task_id="any", retries=4, **settings)
    given = cast(Context, {"task": task})
    for tried, expected in enumerate(delays_min, start=1 + tries_before_a_clear):
        decision = PipelineRetryPolicy().evaluate(StorageError("The disk is away."), tried, 4 + tries_before_a_clear, given)
        assert decision.retry_delay == (None if expected is None else timedelta(minutes=expected))


def test_other_errors_are_retried_as_without_the_policy() -> None:
    assert PipelineRetryPolicy().evaluate(ValueError("no pipeline's"), 1, 3).action is RetryAction.DEFAULT


def test_the_policy_survives_serialization() -> None:
    assert isinstance(PipelineRetryPolicy.deserialize(PipelineRetryPolicy().serialize()), PipelineRetryPolicy)


@pytest.mark.parametrize(
    ("try_number", "max_tries", "retries", "automatic"),
    [
        (1, 3, 3, False),
        (2, 3, 3, True),
        (4, 3, 3, True),
        (3, 5, 3, False),  # cleared after try 2
        (4, 5, 3, True),
        (2, 1, 0, False),  # cleared, without retries
        (2, 1, None, False),
        (1, 0, 3, False),  # a test run of the DAG
    ],
)
def test_a_retry_is_distinguished_from_a_clear(try_number: int, max_tries: int, retries: int | None, *, automatic: bool) -> None:
    assert is_automatic_retry(SimpleNamespace(try_number=try_number, max_tries=max_tries), retries) is automatic
