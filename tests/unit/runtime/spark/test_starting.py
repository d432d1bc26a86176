"""A start of Spark that is interrupted at any point leaves no process. A script stands in for the JVM."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark.java_gateway
import pytest
from pyspark import SparkContext

from spark_jobs.runtime.spark import starting
from tests.support.command_line import UsedHome
from tests.support.processes import ended, ready

pytestmark = pytest.mark.slow

GATEWAY: Any = pyspark.java_gateway

WAITS = "import time\ntime.sleep(600)\n"
WITHOUT_A_GATEWAY = f"open(PID, 'w').write(str(os.getpid()))\n{WAITS}"
STUBBORN = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WITHOUT_A_GATEWAY}"
WITH_A_SILENT_GATEWAY = f"""
server = socket.create_server(("127.0.0.1", 0))
place = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(place + ".part", "wb") as file:
    file.write(struct.pack("!i", server.getsockname()[1]) + struct.pack("!i", 6) + b"secret")
os.rename(place + ".part", place)
connection, _ = server.accept()
{WITHOUT_A_GATEWAY}"""
PHASES = {"before the gateway is there": WITHOUT_A_GATEWAY, "while the gateway is asked": WITH_A_SILENT_GATEWAY}


@dataclass
class Site:
    """A home, and a Spark installation whose ``spark-submit`` is a script."""

    directory: Path

    def start(self, script: str, at_import: str = "") -> subprocess.Popen[str]:
        """Runs a pipeline, and returns when the script, or the code that the pipeline runs at its import, has started."""
        home = UsedHome(self.directory)
        bin_, pid = self.directory / "spark" / "bin", self.directory / "pid"
        bin_.mkdir(parents=True)
        (bin_ / "spark-submit").write_text(f"#!{sys.executable}\nimport os, signal, socket, struct\nPID = {str(pid)!r}\n{script}")
        (bin_ / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\"' >&2\n")
        for program in bin_.iterdir():
            program.chmod(0o755)
        if at_import:
            entry = Path(home.entry)
            entry.write_text(f"import os, signal\nPID = {str(pid)!r}\n{at_import}\n{entry.read_text()}")
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_jobs", "run", home.entry, "--home", home.url, *home.params],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup the tests ignore this signal
            env=os.environ
            | {"SPARK_HOME": str(bin_.parent), "JAVA_HOME": str(bin_.parent), "XDG_CACHE_HOME": str(self.directory / "cache")},
        )
        ready(process, pid)
        return process

    @property
    def started(self) -> int:
        """The process id of the script."""
        return int((self.directory / "pid").read_text())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    if (tmp_path / "pid").exists() and not ended(made.started):
        os.kill(made.started, signal.SIGKILL)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupted_start_leaves_no_process(site: Site, phase: str, signals: int) -> None:
    process = site.start(PHASES[phase])
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert "Interrupted: Run " in shown
    assert ended(site.started)


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupted_import_of_the_pipeline_leaves_no_process_and_no_home(site: Site, signals: int) -> None:
    process = site.start(WITHOUT_A_GATEWAY, at_import=WITHOUT_A_GATEWAY)
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
    out, shown = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), shown
    assert "Traceback" not in shown
    assert "Interrupted" in shown
    assert ended(site.started)
    assert not (site.directory / "home").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_during_the_import_of_the_pipeline_leaves_no_process_and_no_home(
    site: Site, number: signal.Signals
) -> None:
    process = site.start(WITHOUT_A_GATEWAY, at_import=WITHOUT_A_GATEWAY)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert ended(site.started)
    assert not (site.directory / "home").exists()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_during_a_start_leaves_no_process(site: Site, phase: str, number: signal.Signals) -> None:
    process = site.start(PHASES[phase])
    process.send_signal(number)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == -number
    assert ("Go on with it: spark-jobs run " in " ".join(shown.split())) is (number is signal.SIGTERM)
    assert ended(site.started)


def test_a_process_that_ignores_the_termination_is_killed(site: Site) -> None:
    process = site.start(STUBBORN)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert ended(site.started)


@pytest.mark.parametrize("answered", [True, False])
def test_a_start_that_fails_leaves_no_process(answered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = SimpleNamespace(proc=object())  # an earlier JVM, which Spark still uses
    monkeypatch.setattr(SparkContext, "_gateway", standing)
    made: list[subprocess.Popen[bytes]] = []

    def fail() -> None:
        with starting.ended_unless_started():
            made.append(GATEWAY.Popen(["sleep", "600"]))
            if answered:
                monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=made[0]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (process,) = made
    assert process.returncode == -signal.SIGTERM
    assert GATEWAY.Popen is subprocess.Popen
    assert SparkContext._gateway is (None if answered else standing)


def test_a_start_that_succeeds_keeps_its_process() -> None:
    with starting.ended_unless_started():
        process = GATEWAY.Popen(["sleep", "600"])
    try:
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
