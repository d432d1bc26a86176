"""A running driver is recognized by its locks and not by its process id."""

import fcntl
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.liveness import (
    HEARTBEAT_AGE_MAX_S,
    claimed_by_another,
    driver_at_work,
    holding,
    locked,
    noted,
)
from spark_jobs.control.status import read_status, write_status
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.errors import (
    CorruptDocumentError,
    InvalidParameterError,
    NotFoundError,
    StorageError,
)
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt

HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("lock", [DRIVER_LOCK, JVM_LOCK])
def test_a_driver_is_at_work_exactly_while_its_process_holds_a_lock(tmp_path: Path, lock: str) -> None:
    files, path = LocalFiles(tmp_path), tmp_path / lock
    assert not driver_at_work(files)
    path.parent.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert driver_at_work(files)
        holder.kill()
    assert path.exists()
    assert not driver_at_work(files)


@pytest.mark.parametrize("replace", ["link", "pipe", "device"])
def test_a_link_or_pipe_in_place_of_the_lock_is_neither_followed_nor_waited_for(tmp_path: Path, replace: str) -> None:
    lock, elsewhere = tmp_path / "driver.lock", tmp_path / "elsewhere"
    elsewhere.write_text("somebody else's")
    if replace == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(elsewhere if replace == "link" else "/dev/zero")
    for look in (locked, noted):
        with pytest.raises(CorruptDocumentError, match="not a regular file"):
            look(lock)
    with pytest.raises(CorruptDocumentError, match="not a regular file"), holding(lock, "a note"):
        pass
    assert elsewhere.read_text() == "somebody else's"


def test_only_the_first_bytes_of_a_long_note_in_a_lock_are_read(tmp_path: Path) -> None:
    (tmp_path / "driver.lock").write_bytes(b"\xff" * 10_000)
    assert len(noted(tmp_path / "driver.lock")) == 4096


def test_a_driver_works_on_the_request_that_its_lock_names(tmp_path: Path) -> None:
    files, first, second = LocalFiles(tmp_path), RequestId("start-1"), RequestId("start-2")
    assert not claimed_by_another(files, first)
    with holding(tmp_path / DRIVER_LOCK, second):
        assert claimed_by_another(files, first)
        assert not claimed_by_another(files, second)
    assert not claimed_by_another(files, first)


def test_asking_whether_a_driver_runs_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    assert not locked(path)
    assert not locked(path)


def test_a_lock_that_cannot_be_checked_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("where the locks of a home should be")
    for look in (lambda: driver_at_work(LocalFiles(tmp_path)), lambda: noted(tmp_path / DRIVER_LOCK)):
        with pytest.raises(StorageError) as caught:
            look()
        assert isinstance(caught.value, NotFoundError)
        assert caught.value.remedy


HELD_BY_ANOTHER = """import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(1)"""


def free_for_others(path: Path) -> bool:
    return subprocess.run([sys.executable, "-c", HELD_BY_ANOTHER, str(path)], check=False).returncode == 0


def test_neither_a_check_nor_a_second_attempt_to_lock_releases_the_lock_of_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "work" / "lock"
    with holding(path, "start-1"):
        assert locked(path)
        assert noted(path) == "start-1"
        with pytest.raises(BlockingIOError), holding(path, "start-2"):
            pass
        assert not free_for_others(path)
    assert not locked(path)
    assert free_for_others(path)


def test_a_lock_can_be_held_again(tmp_path: Path) -> None:
    for request in ("start-1", "start-2"):
        with holding(tmp_path / "lock", request):
            assert (tmp_path / "lock").stat().st_size == len(request)


def test_a_lock_on_a_deleted_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that opens the file of a refused start, which is deleted then, would otherwise work beside the next one."""
    path, lockf = tmp_path / "work" / "driver.lock", fcntl.lockf

    def late(descriptor: int, command: int) -> None:
        monkeypatch.setattr("fcntl.lockf", lockf)
        path.unlink()
        path.parent.rmdir()
        lockf(descriptor, command)

    monkeypatch.setattr("fcntl.lockf", late)
    with holding(path, "start-2"):
        assert path.read_text() == "start-2"


def test_the_refusal_of_a_held_lock_names_the_request_of_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("start-7")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError), holding(path, "start-8"):
            pass
        assert noted(path) == "start-7"
        holder.kill()


def heartbeat(age_s: float, state: RunState) -> Status:
    return Status(attempt=AttemptNumber(1), run=RunId("a"), state=state, updated_at=datetime.now(UTC) - timedelta(seconds=age_s))


@pytest.mark.parametrize(
    ("age_s", "state", "at_work"),
    [
        (1, RunState.RUNNING, True),
        (HEARTBEAT_AGE_MAX_S * 2, RunState.RUNNING, False),
        (1, RunState.DONE, False),
        (1, RunState.FAILED, False),
    ],
)
def test_a_driver_on_another_host_is_judged_by_its_heartbeat(
    tmp_path: Path, age_s: float, state: RunState, at_work: bool
) -> None:
    files = LocalFiles(tmp_path)
    Attempts(files).create(attempt(1))
    write_status(files, heartbeat(age_s, state))
    assert attempt(1).host != socket.gethostname()
    assert driver_at_work(files) is at_work


def test_a_torn_heartbeat_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b'{"body": {')
    assert read_status(LocalFiles(tmp_path)) is None


ASK_AS_ANOTHER_USER = """import os, sys
from pathlib import Path
from spark_jobs.control.liveness import locked, noted
os.chdir(sys.argv[1])  # the directories above it are not everybody's
if os.geteuid() == 0:
    os.seteuid(65534)
print(locked(Path("lock")), noted(Path("lock")))"""


def test_a_user_who_may_not_write_the_lock_sees_whether_it_is_held(tmp_path: Path) -> None:
    """A cluster may run drivers as another user than Airflow."""
    tmp_path.chmod(0o755)
    with holding(tmp_path / "lock", "start-1"):
        (tmp_path / "lock").chmod(0o444)
        asked = [sys.executable, "-c", ASK_AS_ANOTHER_USER, str(tmp_path)]
        told = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert told.stdout == "True start-1\n"


def test_a_lock_that_cannot_be_taken_or_checked_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for broken, error in ((tmp_path / "loop", CorruptDocumentError), (tmp_path / ("x" * 300), InvalidParameterError)):
        with pytest.raises(error), holding(broken, "start-1"):
            pass
        with pytest.raises(error):
            locked(broken)
    (tmp_path / "device").symlink_to("/dev/full")
    for _ in range(2):  # a lock that could not be taken does not count as held
        with pytest.raises(CorruptDocumentError), holding(tmp_path / "device", "start-1"):
            pass
