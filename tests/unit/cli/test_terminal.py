"""Every error is readable text for people, one document for programs, and an exit code for the shell."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from spark_jobs.cli.spark import standing_stderr
from spark_jobs.cli.terminal import Output, command
from spark_jobs.protocol.errors import (
    ConflictError,
    CorruptDocumentError,
    IncompleteError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StorageFullError,
    StreamPipelineError,
)
from tests.support.command_line import document, spark_jobs
from tests.support.hostile import HOSTILE, is_shown
from tests.support.secret_shapes import CORE, SHAPES

EXIT_CODES = {
    RejectedError: 2,
    CorruptDocumentError: 2,
    ConflictError: 3,
    StorageFullError: 3,
    InterruptedRunError: 3,
    IncompleteError: 3,
    OutcomeUnknownError: 4,
}


class Greeting(BaseModel):
    text: str


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_kind_of_an_error_decides_the_exit_code(kind: type[StreamPipelineError], code: int) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.TEXT):
        raise kind("It failed.")
    assert ended.value.exit_code == code


def test_the_text_of_an_error_says_what_failed_what_exists_what_is_safe_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit), command(Output.TEXT):
        raise OutcomeUnknownError("The [answer] was lost.", exists="A file.", safe="The rows.", remedy="Look.", logs=["/l/1.log"])
    shown = capsys.readouterr()
    assert shown.out == ""
    headline, *parts = [" ".join(line.split()) for line in shown.err.splitlines()]
    assert headline == "Outcome unknown: The [answer] was lost."
    assert parts == [
        "exists A file.",
        "safe The rows.",
        "to do Look.",
        "logs /l/1.log",
        "read docs/reference/errors.md#outcome-unknown",
    ]


def test_the_json_of_an_error_has_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), command(Output.JSON):
        raise RejectedError("No.", remedy="Else.", sink="hourly", expected={"rows": 3})
    answer = json.loads(capsys.readouterr().out)
    assert (answer["code"], answer["documentation"]) == ("rejected", "docs/reference/errors.md#rejected")
    error = answer["error"]
    assert (error["error"], error["retry"], error["failed"], error["remedy"]) == ("RejectedError", "never", "No.", "Else.")
    assert error["evidence"] == {"sink": "hourly", "expected": {"rows": 3}}


def test_an_interrupted_command_says_that_it_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise KeyboardInterrupt
    shown = capsys.readouterr()
    assert ended.value.exit_code == 130
    answer = json.loads(shown.out)
    assert (answer["error"]["error"], answer["code"], answer["documentation"]) == ("Interrupted", None, None)
    assert "Run the same command again" in shown.err


@pytest.mark.parametrize("broken", [InterruptedRunError("The JVM is gone."), ConnectionResetError("by the JVM")], ids=repr)
def test_an_error_that_an_interrupt_has_caused_is_reported_as_an_interrupt(
    broken: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise broken  # like cleanup code that fails because the JVM has ended

    standing = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        interrupted()
    assert ended.value.exit_code == 130
    assert json.loads(capsys.readouterr().out)["error"]["error"] == "Interrupted"
    assert signal.getsignal(signal.SIGINT) is standing


TERMINATED = """
import os, signal, subprocess, sys
from pathlib import Path
from spark_jobs.cli.spark import OutputFile, printing_to
from spark_jobs.cli.terminal import Output, command
with command(Output.JSON) as terminal, printing_to(OutputFile(Path(sys.argv[1]))):
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        print("unwound")
"""


def test_a_termination_is_reported_before_it_ends_the_process_also_while_spark_starts(tmp_path: Path) -> None:
    program = [sys.executable, "-c", TERMINATED, str(tmp_path / "spark.log")]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGTERM
    assert json.loads(ended.stdout)["error"]["error"] == "Interrupted"
    assert "Run the same command again" in ended.stderr
    assert (tmp_path / "spark.log").read_text() == ""


def test_a_command_leaves_another_handler_of_termination_alone() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with command(Output.TEXT):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_error_of_any_full_disk_names_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/work/spark.log")
    shown = capsys.readouterr()
    assert ended.value.exit_code == 3
    assert "Traceback" not in shown.err
    error = json.loads(shown.out)["error"]
    assert (error["error"], error["evidence"]["path"]) == ("StorageFullError", "/home/work/spark.log")


def test_a_defect_of_the_product_shows_its_traceback_and_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise ZeroDivisionError("nobody expected that")
    shown = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "Traceback" in shown.err
    assert "Please report it" in shown.err
    assert json.loads(shown.out)["error"]["error"] == "ZeroDivisionError"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("output", [Output.JSON, Output.TEXT])
@pytest.mark.parametrize("kind", [RejectedError, RuntimeError])
def test_no_failure_and_no_defect_shows_a_secret(
    shape: str, output: Output, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", SHAPES[shape])
    monkeypatch.setenv("COLUMNS", "40")  # a terminal wraps lines

    def fail() -> None:
        print("printed", SHAPES[shape])
        print(SHAPES[shape], file=sys.stderr)
        raise kind(f"no login with {SHAPES[shape]}") from ValueError(SHAPES[shape])

    with pytest.raises(typer.Exit), command(output):
        fail()
    said = "".join(capsys.readouterr())
    assert "printed ***" in said
    assert CORE not in said.replace("\n", "")


def test_other_users_cannot_write_the_files_of_a_command_and_of_its_processes(tmp_path: Path) -> None:
    standing = os.umask(0)
    try:
        with command(Output.TEXT):
            (tmp_path / "own").touch()
            subprocess.run(["touch", str(tmp_path / "started")], check=True)
        assert os.umask(0) == 0
    finally:
        os.umask(standing)
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(tmp_path.iterdir())] == ["0o664", "0o664"]


def test_a_masked_stream_behaves_as_the_stream_that_it_wraps(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", CORE)
    standing = sys.stdout
    with command(Output.TEXT):
        assert (sys.stdout.fileno(), sys.stdout.isatty()) == (standing.fileno(), False)
        assert sys.stdout.write(CORE) == len(CORE)
        sys.stdout.writelines([CORE])
        with closing(standing_stderr()) as stderr:
            print(CORE, file=stderr)
    assert sys.stdout is standing
    assert "".join(capfd.readouterr()) == "*********\n"


def test_the_output_for_programs_is_nothing_but_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with command(Output.JSON) as terminal:
        print("a print in a user's function")
        terminal.answer(Greeting(text="hello"), "Hello!")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"text": "hello"}
    assert "a print in a user's function" in shown.err


def test_the_output_for_people_is_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    with command(Output.TEXT) as terminal:
        terminal.answer(Greeting(text="hello"), "Hello [red]you[/red] :smile:")
    assert capsys.readouterr().out == "Hello [red]you[/red] :smile:\n"


@pytest.mark.parametrize("name", ["run", "status", "checkpoints", "inspect", "publish", "validate", "schema"])
def test_every_command_shows_the_schema_of_its_answer(name: str) -> None:
    shown = spark_jobs(name, "--output", "schema")
    assert shown.exit_code == 0
    assert "Failure" in document(shown)["$defs"]


def test_the_schema_of_an_answer_describes_its_fields_also_those_that_it_shares_with_a_document() -> None:
    entry = document(spark_jobs("checkpoints", "--output", "schema"))["$defs"]["CheckpointEntry"]["properties"]
    assert entry["published"]["description"] == "True for a sink whose rows are public; None if its table is missing."
    assert entry["finished"]["description"] == "Stages that had ended before the cut."
    assert "description" not in entry["rows"]


def test_the_option_version_shows_the_version_of_the_package() -> None:
    shown = spark_jobs("--version")
    assert (shown.exit_code, shown.stdout) == (0, f"spark-jobs {version('airflow-provider-spark-jobs')}\n")


@pytest.mark.parametrize(
    "arguments", [["run"], ["status"], ["inspect", "--home", "h", "--checkpoint", "0"], ["publish", "--what"]]
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    refused = spark_jobs(*arguments)
    assert refused.exit_code == 2
    assert "Usage" in refused.stderr


@pytest.mark.parametrize("output", [Output.TEXT, Output.JSON])
def test_control_characters_in_foreign_texts_are_shown_as_text(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    table = Table.grid()
    table.add_row(Text(HOSTILE), HOSTILE)
    with command(output) as terminal:
        assert logging.lastResort is not None  # pytest installs handlers of its own
        logging.lastResort.handle(logging.LogRecord("spark_jobs", logging.WARNING, "", 1, "it says %s", (HOSTILE,), None))
        terminal.answer(Greeting(text=HOSTILE), HOSTILE, Text(HOSTILE, style="red", no_wrap=True), table)
    with pytest.raises(typer.Exit), command(output):
        raise RejectedError(HOSTILE, exists=HOSTILE, safe=HOSTILE, remedy=HOSTILE, lines=[HOSTILE], logs=[HOSTILE])
    with pytest.raises(typer.Exit), command(output):
        raise RuntimeError(HOSTILE)
    shown = capsys.readouterr()
    assert is_shown(shown.out + shown.err)
