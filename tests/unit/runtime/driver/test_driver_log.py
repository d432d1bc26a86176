"""The driver's own log."""

import json
import logging
import time
from pathlib import Path
from threading import Event

import pytest

from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.masking import masking, unmasked
from spark_jobs.runtime.driver.driver_log import bound, bounded_outputs, driver_log

LOG = logging.getLogger("spark_jobs.runtime.application")


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_driver_log_has_a_line_for_each_message(tmp_path: Path) -> None:
    with driver_log(tmp_path / "logs/1.log", unmasked):
        LOG.info("attempt %d begins", 1)
    (line,) = lines(tmp_path / "logs/1.log")
    assert (line["level"], line["message"]) == ("INFO", "attempt 1 begins")


def fail(path: Path, secret: str) -> None:
    with driver_log(path, masking([secret])):
        LOG.warning("with %s", secret)
        raise ValueError(f"no login with {secret}")


def test_the_driver_log_has_the_error_that_ended_the_attempt_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="login"):
        fail(tmp_path / "1.log", 'p"ässwörd')
    said, ended = lines(tmp_path / "1.log")
    assert said["message"] == "with ***"
    assert "no login with ***" in ended["exception"]
    assert "ssw" not in (tmp_path / "1.log").read_text()


def test_the_driver_log_is_rotated_and_bounded(tmp_path: Path) -> None:
    with driver_log(tmp_path / "1.log", unmasked, size_max_bytes=2_000):
        for number in range(1_000):
            LOG.info("batch %d", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.log", "1.log.1", "1.log.2", "1.log.3"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * 2_000
    assert lines(tmp_path / "1.log")[-1]["message"] == "batch 999"


def test_a_process_continues_to_print_into_a_file_that_was_emptied(tmp_path: Path) -> None:
    path, away = tmp_path / "spark.log", tmp_path / "never.out"
    with path.open("ab", buffering=0) as printing:
        printing.write(b"first\n" * 10)
        bound([path, away], 100)
        assert path.stat().st_size == 60
        bound([path, away], 59)
        printing.write(b"second\n")
    assert path.read_bytes() == b"second\n"
    assert (tmp_path / "spark.log.1").read_bytes() == b"first\n" * 10
    assert not away.exists()


def test_output_files_are_bounded_while_the_context_is_open(tmp_path: Path) -> None:
    path, emptied = tmp_path / "spark.log", tmp_path / "spark.log.1"
    path.write_bytes(b"x" * 11)
    end_s = time.monotonic() + 10.0
    with bounded_outputs(path, size_max_bytes=10, interval_s=0.01):
        while not emptied.exists() and time.monotonic() < end_s:
            Event().wait(0.01)
    assert emptied.read_bytes() == b"x" * 11


def test_a_log_on_a_full_disk_loses_its_lines_without_a_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "1.log").symlink_to("/dev/full")
    with driver_log(tmp_path / "1.log", unmasked):
        LOG.info("attempt %d begins", 1)
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "1.log").mkdir()
    with pytest.raises(StorageError, match=r"1\.log"):
        fail(tmp_path / "1.log", "secret")
