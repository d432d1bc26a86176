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


def test_a_storage_that_is_away_is_borne_for_a_while_from_its_first_failure_on() -> None:
    patience, away = Patience(None), StorageError("The disk is away.")
    assert patience.tolerates(away, 100.0)
    assert patience.tolerates(NotFoundError("The home is away."), 100.0 + LIMITS.storage_s - 0.1)
    assert not patience.tolerates(away, 100.0 + LIMITS.storage_s)


def test_a_storage_that_refuses_is_borne_where_it_has_allowed_before() -> None:
    patience, refused = Patience(None), AccessDeniedError("Not for you.")
    assert not patience.tolerates(refused, 0.0)
    patience.seen()
    assert patience.tolerates(refused, 0.0)
    assert not patience.tolerates(refused, LIMITS.storage_s)


def test_a_look_that_succeeds_begins_the_patience_anew() -> None:
    patience, away = Patience(None), StorageError("The disk is away.")
    assert patience.tolerates(away, 0.0)
    patience.seen()
    assert patience.tolerates(away, LIMITS.storage_s)
    assert not patience.tolerates(away, 2 * LIMITS.storage_s)


@pytest.mark.parametrize("error", [AccessDeniedError("No."), RejectedError("No."), InterruptedRunError("It ended.")])
def test_what_does_not_pass_by_itself_is_not_borne(error: StreamPipelineError) -> None:
    assert not Patience(None).tolerates(error, 0.0)


def test_nothing_is_borne_past_the_deadline() -> None:
    assert not Patience(10.0).tolerates(StorageError("The disk is away."), 10.0)
