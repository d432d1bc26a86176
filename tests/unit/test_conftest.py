"""Tests of the test suite's own fixtures: no test may leave a process running or a temporary file outside its directory."""

import os
import tempfile
from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text()
STARTS_A_PROCESS = """
import subprocess, sys

def test_that_starts_a_process():
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    {then}
"""


@pytest.fixture(params=[[], ["-n", "2"]], ids=["one process", "two processes"])
def processes(request: pytest.FixtureRequest) -> list[str]:
    """The ways in which tests are run: in one process or in several."""
    return list(request.param)


def run(pytester: pytest.Pytester, then: str, processes: list[str]) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.replace("OUTLIVE_S = 15.0", "OUTLIVE_S = 0.2"))
    pytester.makepyfile(STARTS_A_PROCESS.format(then=then))
    return pytester.runpytest_subprocess("-p", "no:randomly", *processes)


@pytest.mark.slow
def test_a_process_that_outlives_the_tests_fails_them(pytester: pytest.Pytester, processes: list[str]) -> None:
    result = run(pytester, "sys.kept = process", processes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*processes that outlived the tests*", "*sys.stdin.read()*"])


@pytest.mark.slow
def test_a_process_that_has_ended_does_not_fail_the_tests(pytester: pytest.Pytester, processes: list[str]) -> None:
    result = run(pytester, "process.communicate()", processes)
    assert result.ret == pytest.ExitCode.OK


LOGS_AT_THE_END = """
import atexit, logging

def test_that_makes_a_handler():
    logger = logging.getLogger("spoken")
    logger.addHandler(logging.StreamHandler())
    atexit.register(logger.error, "too late")
"""


@pytest.mark.slow
def test_a_log_message_after_the_tests_is_no_logging_error(pytester: pytest.Pytester, processes: list[str]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(LOGS_AT_THE_END)
    result = pytester.runpytest_subprocess("-p", "no:randomly", *processes)
    assert result.ret == pytest.ExitCode.OK
    assert "Logging error" not in f"{result.stdout}{result.stderr}"


def test_temporary_files_of_tests_and_their_processes_are_in_the_directory_that_pytest_removes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tempfile.gettempdir()
    assert Path(directory).is_relative_to(tmp_path_factory.getbasetemp())
    assert os.environ["TMPDIR"] == directory
    assert f'"-Djava.io.tmpdir={directory}"' in os.environ["SPARK_SUBMIT_OPTS"]
