import time
from pathlib import Path

import pytest

from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.ids import AttemptNumber, RunId, StageName
from spark_jobs.runtime import heartbeat
from spark_jobs.runtime.heartbeat import Heartbeat
from spark_jobs.storage.local import LocalFiles


def test_a_change_of_state_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_INTERVAL_S", 3_600.0)
    files = LocalFiles(str(tmp_path))
    with Heartbeat(files, AttemptNumber(1), RunId("r"), [StageName("hourly")], None) as beating:
        beating.state(RunState.RUNNING)
        assert written(files, RunState.RUNNING).attempt == 1
    assert written(files, RunState.DONE).stages.keys() == {"hourly"}


def written(files: LocalFiles, state: RunState) -> Status:
    """The status document once it says ``state``."""
    end_s = time.monotonic() + 10.0
    while time.monotonic() < end_s:
        status = read_status(files)
        if status is not None and status.state is state:
            return status
    raise AssertionError(f"{state} was not written")
