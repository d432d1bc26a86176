import fcntl
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from scripts.demo import preflight
from scripts.demo.preflight import CannotRunError, check_requirements, fresh
from scripts.demo.processes import AirflowProcess, end_leftovers, environment_of


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO())


def test_a_second_demo_starts_from_nothing(tmp_path: Path, console: Console) -> None:
    output = tmp_path / "demo-output"
    for _ in range(2):
        with fresh(output, console):
            assert [path.name for path in output.iterdir()] == ["lock"]
            (output / "homes").mkdir()
            (output / "airflow.log").touch()


def test_a_directory_that_does_not_belong_to_a_demo_is_left_alone(tmp_path: Path, console: Console) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(CannotRunError, match="holds something else"), fresh(tmp_path, console):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_demos_at_once_are_refused(tmp_path: Path, console: Console) -> None:
    with (tmp_path / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CannotRunError, match="another demo is at work"), fresh(tmp_path, console):
            pass


def test_the_error_for_a_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path, console: Console) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotRunError, match="Not a directory"), fresh(tmp_path / "file" / "output", console):
        pass


def test_a_missing_package_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "PACKAGES", ("rich", "no_such_package"))
    with pytest.raises(CannotRunError, match="no_such_package cannot be imported. Run 'make setup'"):
        check_requirements(tmp_path)


def test_a_missing_java_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CannotRunError, match="needs Java 17 or newer.* Install a JDK 17"):
        check_requirements(tmp_path)


def test_a_full_disk_is_reported_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=2**20))
    with pytest.raises(CannotRunError, match="only 1 MiB are free.*Free some space"):
        check_requirements(tmp_path / "not" / "there")


def test_no_setting_of_the_users_own_airflow_reaches_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    monkeypatch.setenv("AIRFLOW_CONN_SOMETHING", "x")
    environment = environment_of(tmp_path, tmp_path / "dags", tmp_path / "homes")
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in environment
    assert "AIRFLOW_CONN_SOMETHING" not in environment
    assert environment["AIRFLOW_HOME"] == str(tmp_path / "airflow")


FAKE_AIRFLOW = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def airflow(tmp_path: Path) -> AirflowProcess:
    """A fake Airflow with a driver in a session of its own."""
    (tmp_path / "airflow.py").write_text(FAKE_AIRFLOW)
    return AirflowProcess([], environment=dict(os.environ), log=tmp_path / "airflow.log", directory=tmp_path)


def driver_of(airflow: AirflowProcess, log: Path) -> psutil.Process:
    while not log.read_text().strip():
        assert airflow.poll() is None
    assert airflow.poll() is None
    return psutil.Process(int(log.read_text()))


@pytest.mark.slow
def test_the_end_of_a_demo_also_ends_a_driver_with_its_own_process_session(tmp_path: Path, airflow: AirflowProcess) -> None:
    driver = driver_of(airflow, tmp_path / "airflow.log")
    airflow.end()
    airflow.end()
    assert not driver.is_running()
    assert airflow.poll() is not None


@pytest.mark.slow
def test_the_next_demo_ends_processes_that_a_killed_demo_has_left(tmp_path: Path, airflow: AirflowProcess) -> None:
    driver = driver_of(airflow, tmp_path / "airflow.log")
    assert end_leftovers(tmp_path) == 2
    assert not driver.is_running()
    assert end_leftovers(tmp_path) == 0
    airflow.end()


def test_a_process_that_only_has_the_same_id_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (tmp_path / "processes.json").write_text(f"[[{stranger.pid}, 1.0]]")
        assert end_leftovers(tmp_path) == 0
        assert stranger.poll() is None
        stranger.communicate(b"\n")
