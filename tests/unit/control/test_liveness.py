"""Whether a driver is at work, told by its locks and not by its pid."""

import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.liveness import DRIVER_LOCK, HEARTBEAT_AGE_MAX_S, JVM_LOCK, driver_at_work, locked
from spark_jobs.control.status import read_status, write_status
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.storage.local import LocalFiles
from tests.unit.control.test_channel import attempt

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


def test_asking_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    assert not locked(path)
    assert not locked(path)


def heartbeat(age_s: float, state: RunState = RunState.RUNNING) -> Status:
    return Status(attempt=AttemptNumber(1), run=RunId("a"), state=state, updated_at=datetime.now(UTC) - timedelta(seconds=age_s))


@pytest.mark.parametrize(
    ("status", "at_work"),
    [
        (heartbeat(1), True),
        (heartbeat(HEARTBEAT_AGE_MAX_S * 2), False),
        (heartbeat(1, RunState.DONE), False),
        (heartbeat(1, RunState.FAILED), False),
    ],
)
def test_a_driver_on_another_host_is_judged_by_its_heartbeat(tmp_path: Path, status: Status, at_work: bool) -> None:
    files = LocalFiles(tmp_path)
    Attempts(files).create(attempt(1))
    write_status(files, status)
    assert attempt(1).host != socket.gethostname()
    assert driver_at_work(files) is at_work


def test_half_a_heartbeat_is_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b'{"body": {')
    assert read_status(LocalFiles(tmp_path)) is None
