"""A real driver that is interrupted or terminated in any phase leaves no process.

``tests/unit/runtime/spark/test_starting.py`` tries the phases before there is a session, with a script for the JVM.
"""

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from spark_jobs.protocol.steps import Step
from tests.support.doomed_driver import REACHED
from tests.support.drivers import TIMEOUT_S, Doomed, Drivers, ended
from tests.support.processes import ready

pytestmark = pytest.mark.spark

PHASES = {
    "while the session is made": None,
    "while a batch runs": Step.STAGE_VERSION,
    "while publishing": Step.PUBLISH_SINK,
}
"""The phases, each with the step in which the driver waits."""
ONCE, TWICE, TERMINATED = [signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM]
SIGNALS = {"one Ctrl-C": ONCE, "two Ctrl-C": TWICE, "SIGTERM": TERMINATED}
IN_EVERY_RUN = {"while the session is made": "SIGTERM", "while a batch runs": "two Ctrl-C", "while publishing": "one Ctrl-C"}


def connected(driver: psutil.Process) -> None:
    """Returns when a driver is connected to its JVM. Spark's session is made next."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        for child in driver.children():
            with suppress(psutil.NoSuchProcess):
                ports = {each.laddr.port for each in child.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
                if any(each.raddr and each.raddr.port in ports for each in driver.net_connections("tcp")):
                    return
        assert driver.is_running()
        time.sleep(0.01)
    raise AssertionError("it was never connected")


def start(drivers: Drivers, phase: str, mark: Path) -> "subprocess.Popen[str]":
    """Starts a driver, and returns when it is in a phase."""
    step = PHASES[phase]
    if step is None:
        process = drivers.start()
        connected(psutil.Process(process.pid))
    else:
        process = drivers.start(doom=Doomed("waits", step, before=True))
        ready(process, mark)
    return process


@pytest.mark.parametrize(
    ("phase", "signals"),
    [
        pytest.param(phase, signals, marks=[] if IN_EVERY_RUN[phase] == signals else pytest.mark.nightly)
        for phase in PHASES
        for signals in SIGNALS
    ],
)
def test_a_driver_that_is_ended_in_any_phase_leaves_no_process(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, signals: str
) -> None:
    mark = tmp_path / "reached"
    monkeypatch.setenv(REACHED, str(mark))
    process = start(drivers, phase, mark)
    for number in SIGNALS[signals]:
        # a terminal signals all processes, a supervisor only the driver
        for each in drivers.processes() if number is signal.SIGINT else [psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)
    mark.unlink(missing_ok=True)
    found = ended(process)
    assert found.code == (-signal.SIGTERM if signals == "SIGTERM" else 130), found
    assert "Traceback" not in found.stderr
    assert "Interrupted: Run first was interrupted." in found.stderr
    drivers.wait_gone()
