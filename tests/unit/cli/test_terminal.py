"""Every error reaches people in clear lines, programs as one document, and the shell as an exit code."""

import errno
import json
import os
import signal
from importlib.metadata import version

import pytest
import typer
from pydantic import BaseModel

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


def test_people_read_what_failed_what_exists_what_is_safe_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), command(Output.TEXT):
        raise OutcomeUnknownError("The [answer] was lost.", exists="A file.", safe="The rows.", remedy="Look.", logs=["/l/1.log"])
    shown = capsys.readouterr()
    assert shown.out == ""
    headline, *parts = [" ".join(line.split()) for line in shown.err.splitlines()]
    assert headline == "Outcome unknown: The [answer] was lost."
    assert parts == ["exists A file.", "safe The rows.", "to do Look.", "logs /l/1.log"]


def test_programs_read_the_error_with_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), command(Output.JSON):
        raise RejectedError("No.", remedy="Else.", sink="hourly", expected={"rows": 3})
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["error"], error["retry"], error["failed"], error["remedy"]) == ("RejectedError", "never", "No.", "Else.")
    assert error["evidence"] == {"sink": "hourly", "expected": {"rows": 3}}


def test_an_interrupt_says_that_it_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise KeyboardInterrupt
    shown = capsys.readouterr()
    assert ended.value.exit_code == 130
    assert json.loads(shown.out)["error"]["error"] == "Interrupted"
    assert "Run the same command again" in shown.err


@pytest.mark.parametrize("broken", [InterruptedRunError("The JVM is gone."), ConnectionResetError("by the JVM")], ids=repr)
def test_what_an_interrupt_has_broken_is_an_interrupt_too(broken: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise broken  # as what cleans up does, where there is no JVM any more

    standing = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        interrupted()
    assert ended.value.exit_code == 130
    assert json.loads(capsys.readouterr().out)["error"]["error"] == "Interrupted"
    assert signal.getsignal(signal.SIGINT) is standing


def test_a_disk_that_fills_up_anywhere_is_told_with_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/work/spark.log")
    shown = capsys.readouterr()
    assert ended.value.exit_code == 3
    assert "Traceback" not in shown.err
    error = json.loads(shown.out)["error"]
    assert (error["error"], error["evidence"]["path"]) == ("StorageFullError", "/home/work/spark.log")


def test_a_defect_of_ours_shows_its_traceback_and_exits_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Output.JSON):
        raise ZeroDivisionError("nobody expected that")
    shown = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "Traceback" in shown.err
    assert "please report it" in shown.err
    assert json.loads(shown.out)["error"]["error"] == "ZeroDivisionError"


def test_a_program_reads_nothing_but_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with command(Output.JSON) as terminal:
        print("a print in a user's function")
        terminal.answer(Greeting(text="hello"), "Hello!")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"text": "hello"}
    assert "a print in a user's function" in shown.err


def test_people_read_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    with command(Output.TEXT) as terminal:
        terminal.answer(Greeting(text="hello"), "Hello [red]you[/red] :smile:")
    assert capsys.readouterr().out == "Hello [red]you[/red] :smile:\n"


@pytest.mark.parametrize("name", ["run", "status", "checkpoints", "inspect", "publish", "validate", "schema"])
def test_every_command_shows_the_schema_of_its_answer(name: str) -> None:
    shown = spark_jobs(name, "--output", "schema")
    assert shown.exit_code == 0
    assert "Failure" in document(shown)["$defs"]


def test_the_version_is_that_of_the_package() -> None:
    shown = spark_jobs("--version")
    assert (shown.exit_code, shown.stdout) == (0, f"spark-jobs {version('airflow-provider-spark-jobs')}\n")


@pytest.mark.parametrize(
    "arguments", [["run"], ["status"], ["inspect", "--home", "h", "--checkpoint", "0"], ["publish", "--what"]]
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    refused = spark_jobs(*arguments)
    assert refused.exit_code == 2
    assert "Usage" in refused.stderr
