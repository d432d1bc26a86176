"""The patience of a wait. The tests use no files and no clock."""

import pytest

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    InterruptedRunError,
    NotFoundError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.waits.limits import LIMITS
from spark_jobs.waits.patience import Patience


def test_a_failing_storage_is_tolerated_for_a_while_from_its_first_failure() -> None:
    patience, away = Patience(None), StorageError("The disk is away.")
    assert patience.tolerates(away, 100.0)
    assert patience.tolerates(NotFoundError("The home is away."), 100.0 + LIMITS.storage_s - 0.1)
    assert not patience.tolerates(away, 100.0 + LIMITS.storage_s)


def test_a_refusal_is_tolerated_only_after_an_earlier_success() -> None:
    patience, refused = Patience(None), AccessDeniedError("Not for you.")
    assert not patience.tolerates(refused, 0.0)
    patience.seen()
    assert patience.tolerates(refused, 0.0)
    assert not patience.tolerates(refused, LIMITS.storage_s)


def test_a_successful_look_restarts_the_time_limit() -> None:
    patience, away = Patience(None), StorageError("The disk is away.")
    assert patience.tolerates(away, 0.0)
    patience.seen()
    assert patience.tolerates(away, LIMITS.storage_s)
    assert not patience.tolerates(away, 2 * LIMITS.storage_s)


@pytest.mark.parametrize("error", [AccessDeniedError("No."), RejectedError("No."), InterruptedRunError("It ended.")])
def test_an_error_that_does_not_heal_is_not_tolerated(error: StreamPipelineError) -> None:
    assert not Patience(None).tolerates(error, 0.0)


def test_no_failure_is_tolerated_after_the_deadline() -> None:
    assert not Patience(10.0).tolerates(StorageError("The disk is away."), 10.0)
