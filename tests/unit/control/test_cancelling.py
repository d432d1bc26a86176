"""The attempt that a cancellation ends, decided from the home's documents and the driver's lock."""

from pathlib import Path

import pytest

from spark_jobs.control.cancelling import Cancelled, cancel_newest, cancelled_by_user, has_ended, outcome_of
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.errors import InterruptedRunError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.local import LocalFiles
from tests.airflow.fake_driver import claim

RUN, BY_HAND = RunId("a task"), RunId("by hand")


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    return Channel(LocalFiles(tmp_path))


def begun(channel: Channel) -> StartRequest:
    """Creates a request whose attempt has begun."""
    request = channel.request_start(RUN, parameters={})
    claim(channel, request, None)
    return request


def is_cancelled(channel: Channel, request: StartRequest) -> bool:
    return AttemptLease(channel.files, request.attempt).cancelled() is not None


def test_a_cancel_ends_the_running_attempt_and_the_start_that_found_the_home_locked(channel: Channel, tmp_path: Path) -> None:
    working, refused = begun(channel), channel.request_start(BY_HAND, parameters={})
    with holding(tmp_path / DRIVER_LOCK, working.request):
        cancelled = cancel_newest(channel.files, "a person", "it costs too much")
        assert cancelled is not None
        assert cancelled.attempt == working.attempt
        assert cancel_newest(channel.files, "a person", "it costs too much") == cancelled
    assert is_cancelled(channel, working)
    answer = channel.response(refused.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "RunCancelledError"
    channel.respond_failure(working, RunCancelledError("It was cancelled."))
    assert cancel_newest(channel.files, "a person", "it costs too much") == cancelled, "a next try finds what it has cancelled"
    assert cancel_newest(channel.files, "another person", "it costs too much") is None


def test_a_cancel_ends_a_starting_driver_but_no_earlier_attempt_and_no_later_start(channel: Channel, tmp_path: Path) -> None:
    lost, starting = begun(channel), channel.request_start(RUN, parameters={})
    refused = channel.request_start(BY_HAND, parameters={})
    with holding(tmp_path / DRIVER_LOCK, starting.request):
        assert cancel_newest(channel.files, "a person", "") == Cancelled(starting.attempt, OwnerNumber(1))
    assert not is_cancelled(channel, lost)
    assert is_cancelled(channel, refused)


def test_a_run_stays_cancelled_until_a_new_owner_takes_the_lease_or_starts_the_run(channel: Channel) -> None:
    request, owners = begun(channel), AttemptLease(channel.files, AttemptNumber(1))
    assert cancelled_by_user(channel.files, RUN) is None
    owners.cancel(owners.take("a task").owner, "its task has reached its execution_timeout")
    assert cancelled_by_user(channel.files, RUN) is None, "a task's own cancel is for its next try to go on from"
    cancel_newest(channel.files, "a person", "it costs too much")
    found = cancelled_by_user(channel.files, RUN)
    assert found is not None
    assert "it costs too much" in str(found)
    assert cancelled_by_user(channel.files, BY_HAND) is None
    owners.take("the task was cleared")
    assert cancelled_by_user(channel.files, RUN) is None
    cancel_newest(channel.files, "another person", "")
    channel.respond_failure(request, RunCancelledError("It was cancelled."))
    assert cancelled_by_user(channel.files, RUN) is not None
    channel.request_start(RUN, parameters={})
    assert cancelled_by_user(channel.files, RUN) is None


def test_a_driver_of_an_earlier_home_at_the_same_place_is_not_cancelled(channel: Channel, tmp_path: Path) -> None:
    with holding(tmp_path / DRIVER_LOCK, "start-7"):
        assert cancel_newest(channel.files, "a person", "") is None


def test_a_wait_for_the_end_of_a_deleted_attempt_fails(channel: Channel) -> None:
    begun(channel)
    forgotten = Cancelled(AttemptNumber(7), OwnerNumber(1))
    assert has_ended(channel.files, forgotten)
    with pytest.raises(InterruptedRunError, match="no longer has an answer") as caught:
        outcome_of(channel.files, forgotten)
    assert "deleted after many later starts" in caught.value.exists
