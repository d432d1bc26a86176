"""Airflow's reaction to each kind of error."""

import pickle

import pytest

from airflow_provider.exceptions import (
    PipelineRunError,
    PipelineRunRefusedError,
    airflow_error,
    raising_airflow_errors,
)
from airflow_provider.version_compat import AirflowException, AirflowFailException
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CorruptDocumentError,
    DeadlineExceededError,
    FencedError,
    IncompleteError,
    InterruptedRunError,
    InvalidPipelineError,
    MissingRequirementError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
    UnsupportedFormatError,
)

pytestmark = pytest.mark.every_version


@pytest.mark.parametrize(
    "kind",
    [
        RejectedError,
        InvalidPipelineError,
        MissingRequirementError,
        UnsupportedFormatError,
        CorruptDocumentError,
        AccessDeniedError,
    ],
)
def test_errors_that_would_occur_again_are_not_retried(kind: type[StreamPipelineError]) -> None:
    assert isinstance(airflow_error(kind("It is wrong.")), AirflowFailException)


@pytest.mark.parametrize(
    "kind",
    [
        AlreadyExistsError,
        FencedError,
        OutcomeUnknownError,
        StorageError,
        StorageFullError,
        DeadlineExceededError,
        InterruptedRunError,
        IncompleteError,
    ],
)
def test_errors_that_may_heal_are_retried(kind: type[StreamPipelineError]) -> None:
    error = airflow_error(kind("It is busy."))
    assert isinstance(error, AirflowException)
    assert not isinstance(error, AirflowFailException)


def test_the_text_of_an_error_says_what_failed_what_exists_what_is_safe_and_what_to_do() -> None:
    error = airflow_error(StorageFullError("The disk is full.", exists="Checkpoint 4.", safe="The tables.", remedy="Free space."))
    assert str(error).splitlines() == [
        "StorageFullError: The disk is full.",
        "Exists: Checkpoint 4.",
        "Safe: The tables.",
        "To do: Free space.",
        "Read: docs/reference/errors.md#storage-full",
    ]


@pytest.mark.parametrize("kind", [PipelineRunError, PipelineRunRefusedError])
def test_an_exception_can_cross_a_process(kind: type[PipelineRunError]) -> None:
    copy = pickle.loads(pickle.dumps(kind(StorageFullError("Full.", remedy="Free space.", path="/data"))))
    assert type(copy) is kind
    assert copy.error.evidence == {"path": "/data"}


def test_other_exceptions_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), raising_airflow_errors():
        _ = 1 / 0
