"""Spark's output is hidden, and shown when it is needed. No JVM is started."""

import errno
import fcntl
import logging
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.cli.spark import OutputFile, SparkOptions, SparkSessions, SparkStart, printing_to, quiet_logging, standing_stderr
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError, StorageFullError
from spark_jobs.protocol.masking import masking
from tests.support.secret_shapes import CORE, SHAPES


class InPlaceOfSpark(SparkSessions):
    """Calls a function in place of starting Spark, and records the arguments."""

    def __init__(self, begin: Callable[[], object] = lambda: None, *, has_archive: bool = True) -> None:
        self.begin, self.given, self.has_archive = begin, dict[str, Any](), has_archive

    def start(self, app_name: str, conf: Mapping[str, str], **options: Any) -> Any:
        self.given = {"name": app_name, "conf": dict(conf), **options}
        return self.begin()

    def submitted(self, app_name: str, conf: Mapping[str, str], warehouse: str) -> Any:
        return self.begin()

    def has_class_archive(self, session: Any) -> bool:
        return self.has_archive


def test_output_of_processes_goes_to_a_file_until_the_context_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "work" / "spark.log"
    with printing_to(OutputFile(log)):
        subprocess.run(["sh", "-c", "echo one; echo two >&2"], check=True)
    os.write(1, b"three\n")
    assert sorted(log.read_text().split()) == ["one", "two"]
    assert capfd.readouterr().out == "three\n"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_file_has_no_secret_that_a_process_prints(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        subprocess.run(["sh", "-c", 'echo "no login with $SPARK_JOBS_PARAM_TOKEN"; echo "$0" >&2', "the last line"], check=True)
        raise MissingRequirementError("Spark did not start.")

    monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", SHAPES[shape])
    with pytest.raises(MissingRequirementError) as failed:
        SparkStart("flights", SparkOptions({}), OutputFile(tmp_path / "spark.log"), sessions=InPlaceOfSpark(fails))()
    assert failed.value.evidence["lines"][-1] == "the last line"
    assert "***" in (tmp_path / "spark.log").read_text()
    assert CORE not in (tmp_path / "spark.log").read_text() + "".join(capfd.readouterr())


def test_a_process_that_goes_on_printing_is_masked_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with printing_to(OutputFile(tmp_path / "spark.log"), masking([CORE])):
        process = subprocess.Popen(["sh", "-c", f"read go; echo one {CORE}"], stdin=subprocess.PIPE)
    writer = next(thread for thread in threading.enumerate() if thread.name == "masked-log")
    process.communicate(b"go\n")
    writer.join(30.0)
    assert (tmp_path / "spark.log").read_text() == "one ***\n"


def test_only_the_file_of_the_previous_start_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for start in range(3):
        with printing_to(OutputFile(tmp_path / "spark.log")):
            os.write(2, b"%d" % start)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"spark.log": "2", "spark.log.1": "1"}


def test_output_without_a_path_gets_one_while_the_process_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output, log = OutputFile(None), tmp_path / "work" / "spark.log"
    with printing_to(output):
        process = subprocess.Popen(["sh", "-c", "echo one; read go; echo two"], stdin=subprocess.PIPE)
    writer = next(thread for thread in threading.enumerate() if thread.name == "masked-log")
    while output.last_lines() != ["one"]:
        pass
    assert list(tmp_path.iterdir()) == []
    output.keep(log)
    process.communicate(b"go\n")
    writer.join(30.0)
    assert log.read_text() == "one\ntwo\n"


def test_the_last_lines_include_lines_that_are_not_copied_yet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begun = threading.Event()

    def slow(text: str) -> str:
        begun.wait(30.0)
        return text

    output = OutputFile(tmp_path / "spark.log")
    with printing_to(output, slow):
        process = subprocess.Popen(["sh", "-c", "read go"], stdin=subprocess.PIPE)  # so that the copy goes on
        os.write(2, b"one\n")
    threading.Timer(0.2, begun.set).start()
    assert output.last_lines() == ["one"]
    process.communicate(b"go\n")


def test_the_lines_of_a_process_with_many_open_files_are_copied(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        end, writing = os.pipe()
        pipe = fcntl.fcntl(end, fcntl.F_DUPFD, 1024)
        os.close(end)
        output = OutputFile(tmp_path / "spark.log")
        output.open()
        copier = output.copy(pipe, masking([CORE]))
        os.write(writing, f"one {CORE}\n".encode())
        assert output.last_lines() == ["one ***"]
        os.close(writing)
        copier.join(30.0)
        output.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "spark.log").read_text() == "one ***\n"


def test_a_start_that_fails_shows_the_last_lines_that_were_printed(tmp_path: Path) -> None:
    def fails() -> None:
        os.write(2, b"\n".join(b"line %d" % number for number in range(100)))
        raise MissingRequirementError("Spark did not start.")

    with pytest.raises(MissingRequirementError) as failed:
        SparkStart("flights", SparkOptions({}), OutputFile(tmp_path / "spark.log"), sessions=InPlaceOfSpark(fails))()
    assert failed.value.evidence["logs"] == [str(tmp_path / "spark.log")]
    assert failed.value.evidence["lines"][-1] == "line 99"
    assert len(failed.value.evidence["lines"]) < 30


def test_every_option_reaches_the_session(tmp_path: Path) -> None:
    sessions = InPlaceOfSpark()
    options, output = SparkOptions({"spark.a": "1"}, ["g:n:1"], ["a.jar"], ["b.py"], "2g"), OutputFile(tmp_path / "spark.log")
    SparkStart("flights", options, output, expects_short_run=lambda: True, sessions=sessions)()
    assert "without its second compiler" in output.last_lines()[-1], "also while it is being copied"
    assert Path(sessions.given["conf"].pop("spark.sql.warehouse.dir")).name == "warehouse"
    assert sessions.given == {
        "name": "flights",
        "conf": {"spark.a": "1"},
        "packages": ["g:n:1"],
        "jars": ["a.jar"],
        "py_files": ["b.py"],
        "driver_memory": "2g",
        "for_a_short_run": True,
    }


@pytest.mark.parametrize(("short", "kept", "faster"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_short_run_without_a_class_archive_would_start_faster_with_one(
    tmp_path: Path, short: bool, kept: bool, faster: bool
) -> None:
    output, sessions = OutputFile(tmp_path / "spark.log"), InPlaceOfSpark(has_archive=kept)
    spark = SparkStart("flights", SparkOptions({}), output, expects_short_run=lambda: short, sessions=sessions)
    spark()
    assert spark.would_start_faster is faster


@pytest.mark.parametrize(("catalog", "aside"), [("hive", False), ("in-memory", True)])
def test_only_an_in_memory_catalog_has_its_warehouse_next_to_the_log(tmp_path: Path, catalog: str, aside: bool) -> None:
    sessions, options = InPlaceOfSpark(), SparkOptions({"spark.sql.catalogImplementation": catalog})
    SparkStart("flights", options, OutputFile(tmp_path / "logs" / "spark.log"), sessions=sessions)()
    assert ("spark.sql.warehouse.dir" in sessions.given["conf"]) is aside


def test_a_session_of_spark_submit_is_used_as_it_is(tmp_path: Path) -> None:
    taken = InPlaceOfSpark(lambda: "the session of spark-submit")
    start = SparkStart("flights", SparkOptions({}), OutputFile(tmp_path / "spark.log"), submitted=True, sessions=taken)
    session: object = start()
    assert session == "the session of spark-submit"
    assert not (tmp_path / "spark.log").exists()


@pytest.mark.parametrize("submitted", [False, True])
def test_a_start_of_spark_leaves_the_interrupt_handler_as_it_was(submitted: bool, tmp_path: Path) -> None:
    def started() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Spark installs a handler of its own

    standing, output = signal.getsignal(signal.SIGINT), OutputFile(tmp_path / "spark.log")
    SparkStart("flights", SparkOptions({}), output, submitted=submitted, sessions=InPlaceOfSpark(started))()
    assert signal.getsignal(signal.SIGINT) is standing


def test_options_that_spark_submit_cannot_apply_any_more_are_refused() -> None:
    SparkOptions({"spark.a": "1"}).check_submitted()
    with pytest.raises(InvalidParameterError, match="--packages, --driver-memory"):
        SparkOptions({}, packages=["g:n:1"], driver_memory="2g").check_submitted()


def test_warnings_of_users_are_shown_and_those_of_the_gateway_and_ours_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with quiet_logging():
        logging.getLogger("flights").warning("look here")
        logging.getLogger("spark_jobs.runtime.application").error("it ended")
        record = logging.LogRecord("root", logging.ERROR, "/site-packages/py4j/java_gateway.py", 1, "lost", None, None)
        logging.getLogger().handle(record)
    assert capsys.readouterr().err == "look here\n"
    assert logging.getLogger().handlers == []


def test_logging_that_a_user_has_set_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[logging.Handler] = [logging.NullHandler()]
    monkeypatch.setattr(logging.getLogger(), "handlers", own)
    with quiet_logging():
        assert logging.getLogger().handlers == own


def test_progress_is_seen_while_the_descriptors_are_redirected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(os.dup(2), "w") as stderr, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", stderr)
        with standing_stderr() as screen, printing_to(OutputFile(tmp_path / "spark.log")):
            screen.write("starting Spark")
    assert capfd.readouterr().err == "starting Spark"
    assert (tmp_path / "spark.log").read_text() == ""


def test_the_error_of_a_full_disk_names_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageFullError) as told, printing_to(OutputFile(tmp_path / "work" / "spark.log")):
        pass
    assert told.value.evidence["path"] == str(tmp_path / "work" / "spark.log")
