"""A command works with any standard output and standard error. A closed or full stream is reported, and is not reported as a defect."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.command_line import UsedHome

pytestmark = pytest.mark.slow

FULL = "Failed: The answer cannot be written to standard output: No space left on device."


def shell(line: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell command line in which ``$@`` is ``spark-jobs`` with arguments."""
    command = ["bash", "-c", f"set -o pipefail; {line}", "bash", sys.executable, "-m", "spark_jobs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_full_standard_output_is_reported(drained: UsedHome, output: str) -> None:
    told = shell('"$@" >/dev/full', "inspect", "--home", drained.url, "--output", output)
    assert told.returncode == 3
    assert " ".join(told.stderr.split()).startswith(FULL)
    assert "Traceback" not in told.stderr
    assert "Exception ignored" not in told.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--output", "schema"]])
def test_a_full_standard_output_is_reported_without_a_command(arguments: list[str]) -> None:
    told = shell('"$@" >/dev/full', *arguments)
    assert told.returncode == 3
    assert " ".join(told.stderr.split()).startswith(FULL)


def test_a_full_standard_error_does_not_hide_the_exit_code(drained: UsedHome) -> None:
    assert shell('"$@" 2>/dev/full', "inspect", "--home", f"{drained.url}/nothing").returncode == 2


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reader_that_has_gone_is_not_reported_as_a_failure(drained: UsedHome, output: str) -> None:
    told = shell('{ "$@"; echo $? >&2; } | true', "inspect", "--home", drained.url, "--output", output)
    assert told.stderr == "141\n"


def test_closed_streams_do_not_fail_a_command(drained: UsedHome) -> None:
    for output in ("text", "json"):
        told = shell('"$@" <&- >&- 2>&-', "run", drained.entry, "--home", drained.url, *drained.params, "--output", output)
        assert told.returncode == 0


def test_an_ascii_terminal_gets_escapes_for_other_characters(drained: UsedHome) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown = shell('"$@"', "validate", drained.entry, "--no-spark", *drained.params[:1], "warehouse=/tablés", **ascii_only)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "/tabl\\xe9s" in shown.stdout
    answer = shell('"$@"', "status", "--home", "/nowhere/é", "--output", "json", **ascii_only)
    assert "/nowhere/é" in json.loads(answer.stdout)["error"]["failed"]
