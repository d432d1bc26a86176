"""The quickstart as a reader types it: its files, its commands in order, and their printed output."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks
from tests.support.short_jvm import SHORT_RUN

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs/quickstart.md"
SMALL_SPARK = [
    f"--conf={key}={value}" for key, value in ({"spark.master": "local[2]", "spark.ui.enabled": "false"} | SHORT_RUN).items()
]
FOR_PEOPLE = ("source", "mkdir", "export", "airflow", "rm")
"""Commands that prepare a shell, and those of the part with Airflow. That DAG is parsed in tests/airflow."""


def commands() -> Iterator[list[str]]:
    for block in blocks(PAGE, "console"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] not in FOR_PEOPLE:
                yield words


def typed(words: list[str], folder: Path) -> str:
    """Runs a command, which must succeed, and returns its output."""
    program, arguments = words[0], words[1:]
    here = {"python": [sys.executable], "spark-jobs": [sys.executable, "-m", "spark_jobs"]}[program]
    small = SMALL_SPARK if program == "spark-jobs" and arguments[0] == "run" else []
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*here, *arguments, *small], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    for block in blocks(PAGE, "python"):
        assert block.title is not None
        (tmp_path / block.title).parent.mkdir(exist_ok=True)
        (tmp_path / block.title).write_text(block.text)
    (promised,) = (block.text for block in blocks(PAGE, "text") if block.title == "show.py prints")
    said = [(shlex.join(words), typed(words, tmp_path)) for words in commands()]
    ran = [text for command, text in said if " run " in command]
    assert dict(said)["python show.py"] == promised
    assert "Checkpoint 1 is complete: the pipeline is drained." in ran[0]
    assert "Nothing was left to do" in ran[1]
    assert {words.split()[1] for words, _ in said if words.startswith("spark-jobs")} == {
        "validate",
        "run",
        "checkpoints",
        "inspect",
    }
