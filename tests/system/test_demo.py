"""``make demo`` as a user runs it: interrupted once, then run again to its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


def demo(output: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.demo", "--output", str(output)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def started_by(output: Path) -> set[psutil.Process]:
    found = set()
    for pid, created in json.loads((output / "processes.json").read_text()):
        if psutil.pid_exists(pid) and psutil.Process(pid).create_time() == created:
            found.add(psutil.Process(pid))
    return found


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=lambda stop: stop.name)
def test_a_demo_that_was_stopped_leaves_no_process_and_the_next_one_starts_afresh_and_is_right(
    tmp_path: Path, stop: signal.Signals
) -> None:
    output, running = tmp_path / "demo-output", set()
    with demo(output) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Pin the input" in line:  # Airflow, the driver and its JVM are all running
                running = started_by(output)
                os.kill(process.pid, stop)
                break
        said = process.stdout.read()
    assert process.returncode == 130
    assert "Stopped" in said
    assert len(running) >= 3
    assert not [found for found in running if found.is_running() and found.status() != psutil.STATUS_ZOMBIE]

    with demo(output) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    for sink, rows in (("hourly", "116,904"), ("daily", "5,442"), ("late_spells", "647")):
        assert any(sink in line and f"the same {rows} rows" in line for line in said.splitlines()), said
    assert "What to type next" in said
