"""A process that cannot be started on this host, or does not end."""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.drivers.driver_probe import probe_driver
from airflow_provider.drivers.local_driver import LocalDriver, start_local_driver
from spark_jobs.protocol.errors import MissingRequirementError, Retry, StreamPipelineError


def failing(program: str, number: int, output: Path) -> StreamPipelineError:
    """Returns the error for a program that the system refuses to start."""

    def popen(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StreamPipelineError) as caught:
        start_local_driver([program, "--version"], output=output, environment={}, popen=popen)
    return caught.value


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_host_that_is_too_busy_for_a_process_is_tried_again_later(tmp_path: Path, number: int) -> None:
    error = failing("/usr/bin/python3", number, tmp_path / "output")
    assert error.retry is Retry.WITH_BACKOFF
    assert "python" not in error.remedy


@pytest.mark.parametrize(
    ("program", "remedy"),
    [("/usr/bin/python3", "'python' in the connection's"), ("/opt/spark/bin/spark3-submit", "spark-submit")],
)
@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC])
def test_a_missing_program_is_not_tried_again_and_the_error_says_which_setting_names_it(
    tmp_path: Path, program: str, remedy: str, number: int
) -> None:
    error = failing(program, number, tmp_path / "output")
    assert isinstance(error, MissingRequirementError)
    assert remedy in error.remedy
    assert error.evidence == {"program": program}


def test_the_wait_for_a_process_that_survives_its_kill_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One example is a process in a call to a storage whose server is down."""
    driver = start_local_driver(["sleep", "3600"], output=tmp_path / "output", environment={})
    with monkeypatch.context() as patch:
        patch.setattr(LocalDriver, "_signal_group", lambda *_: None)
        driver.stop(grace_s=0.1)
    assert not driver.was_stopped
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.wait(30.0)
    assert driver.was_stopped


def test_the_drivers_python_imports_nothing_from_the_workers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for module in ("json", "spark_jobs", "pyspark"):
        (theirs / f"{module}.py").write_text("raise SystemExit('this is not the module that is installed')")
    monkeypatch.chdir(theirs)
    monkeypatch.setenv("PYTHONPATH", ".")
    output = tmp_path / "logs/driver-1.out"
    driver = start_local_driver(
        [sys.executable, "-P", "-m", "spark_jobs", "--help"], output=output, directory=output.parent, environment={}
    )
    assert driver.wait(60.0)
    assert "not the module" not in output.read_text()
    assert "Usage" in output.read_text()
    assert probe_driver(sys.executable)["pyspark"]
