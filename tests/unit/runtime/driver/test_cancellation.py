"""An attempt ends when it is cancelled through its home."""

import threading
from pathlib import Path

import pytest

from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import RunCancelledError, StorageError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.storage.local import LocalFiles

DEADLINE_S = 10.0


@pytest.fixture
def owners(tmp_path: Path) -> AttemptLease:
    return AttemptLease(LocalFiles(tmp_path), AttemptNumber(1))


def until_cancelled(cancellation: Cancellation) -> RunCancelledError:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        try:
            cancellation.check()
        except RunCancelledError as error:
            return error
        pause.wait(0.01)
    raise AssertionError("the cancel was not seen")


def test_a_cancel_is_raised_at_the_next_check_with_its_reason(owners: AttemptLease) -> None:
    owner = owners.take("a task").owner
    with Cancellation(owners, interval_s=0.01) as cancellation:
        cancellation.check()
        owners.cancel(owner, "its task was cleared")
        error = until_cancelled(cancellation)
    assert "its task was cleared" in error.failed
    assert error.evidence == {"attempt": 1, "owner": owner}


def test_a_process_that_ends_in_time_is_not_killed(owners: AttemptLease) -> None:
    ended = threading.Event()
    owners.cancel(owners.take("a task").owner, "its task was cleared")
    with Cancellation(owners, interval_s=0.01, patience_s=60.0, end=ended.set) as cancellation:
        until_cancelled(cancellation)
    assert not ended.is_set()


def test_a_process_that_never_reaches_a_check_is_killed(owners: AttemptLease) -> None:
    ended = threading.Event()
    owners.cancel(owners.take("a task").owner, "its task was cleared")
    with Cancellation(owners, interval_s=0.01, patience_s=0.01, end=ended.set):
        assert ended.wait(DEADLINE_S)


def test_a_home_that_is_unreadable_for_a_while_cancels_nothing(owners: AttemptLease, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = owners.take("a task").owner
    away = threading.Event()

    def fails(*_: object) -> None:
        away.set()
        raise StorageError("The storage is away.")

    with monkeypatch.context() as patched, Cancellation(owners, interval_s=0.01) as cancellation:
        patched.setattr(AttemptLease, "decide", fails)
        assert away.wait(DEADLINE_S)
        cancellation.check()
        patched.undo()
        owners.cancel(owner, "its task was cleared")
        until_cancelled(cancellation)


def test_an_earlier_cancel_is_raised_by_the_first_check(owners: AttemptLease) -> None:
    owners.cancel(owners.take("a task").owner, "its task was cleared")
    with Cancellation(owners, interval_s=3_600.0) as cancellation, pytest.raises(RunCancelledError, match="its task was cleared"):
        cancellation.check()
