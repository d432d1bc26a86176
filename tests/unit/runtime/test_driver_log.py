"""The driver's own log."""

import json
import logging
from pathlib import Path

import pytest

from spark_jobs.protocol.masking import masking, unmasked
from spark_jobs.runtime.driver_log import driver_log

LOG = logging.getLogger("spark_jobs.runtime.application")


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_has_a_line_for_each_thing_that_is_said(tmp_path: Path) -> None:
    with driver_log(tmp_path / "attempts/1.log", unmasked):
        LOG.info("attempt %d begins", 1)
    (line,) = lines(tmp_path / "attempts/1.log")
    assert (line["level"], line["message"]) == ("INFO", "attempt 1 begins")


def fail(path: Path, secret: str) -> None:
    with driver_log(path, masking([secret])):
        LOG.warning("with %s", secret)
        raise ValueError(f"no login with {secret}")


def test_what_ends_the_attempt_is_in_it_without_its_secrets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="login"):
        fail(tmp_path / "1.log", 'p"ässwörd')
    said, ended = lines(tmp_path / "1.log")
    assert said["message"] == "with ***"
    assert "no login with ***" in ended["exception"]
    assert "ssw" not in (tmp_path / "1.log").read_text()
