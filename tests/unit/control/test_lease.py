"""The owner of an attempt, which may end it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId
from spark_jobs.storage.local import LocalFiles


@pytest.fixture
def owners(tmp_path: Path) -> AttemptLease:
    return AttemptLease(LocalFiles(tmp_path), AttemptNumber(1))


def test_the_last_one_to_take_the_lease_is_the_owner(owners: AttemptLease) -> None:
    assert owners.newest() is None
    assert [owners.take(token).owner for token in ("first", "second")] == [1, 2]
    newest = owners.newest()
    assert newest is not None
    assert (newest.owner, newest.token) == (2, "second")


def test_taking_the_lease_again_changes_nothing(owners: AttemptLease) -> None:
    assert owners.take("first") == owners.take("first")


def test_owners_that_take_the_lease_at_once_get_different_numbers(owners: AttemptLease) -> None:
    tokens = [f"task {number}" for number in range(8)]
    with ThreadPoolExecutor(len(tokens)) as pool:
        found = list(pool.map(owners.take, tokens))
    assert sorted(each.owner for each in found) == list(range(1, 9))
    newest = owners.newest()
    assert newest is not None
    assert newest.owner == 8


def test_a_cancel_by_the_owner_counts_and_may_be_repeated(owners: AttemptLease) -> None:
    owner = owners.take("first").owner
    assert owners.cancelled() is None
    owners.cancel(owner, "the task was killed")
    owners.cancel(owner, "again")
    request = owners.cancelled()
    assert request is not None
    assert (request.request, request.owner, request.reason) == ("cancel-1-1", 1, "the task was killed")


def test_a_cancel_by_a_former_owner_does_not_count(owners: AttemptLease) -> None:
    before = owners.take("first").owner
    owners.take("second")
    owners.cancel(before, "the task was cleared")
    assert owners.cancelled() is None


def test_taking_the_lease_of_a_cancelled_attempt_revokes_the_cancel(owners: AttemptLease) -> None:
    owners.cancel(owners.take("first").owner, "the task was cleared")
    owners.take("second")
    assert owners.cancelled() is None


def test_a_cancel_without_an_owner_does_not_count(owners: AttemptLease) -> None:
    owners.cancel(OwnerNumber(1), "nobody has charge")
    assert owners.cancelled() is None


def test_documents_of_owners_and_cancels_are_not_taken_for_attempts_or_starts(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    owners = AttemptLease(files, AttemptNumber(3))
    owners.cancel(owners.take("first").owner, "the task was killed")
    assert Attempts(files).numbers() == []
    assert Channel(files).request_start(RunId("a"), parameters={}).attempt == 1
