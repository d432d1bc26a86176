"""A driver that meets a fate: ``python -m tests.support.doomed_driver FATE STEP before|after OCCURRENCE SINCE run …``.

It meets the fate when it passes the step for the n-th time, counted from the end of the step ``SINCE`` or from its ``start``:

- ``killed``: its process gets SIGKILL; its JVM ends by itself.
- ``orphans``: its JVM is stopped, then its process gets SIGKILL. The JVM stays until the test continues it.
- ``widowed``: its JVM gets SIGKILL.
- ``stopped``: its process is stopped until the test continues it.
- ``waits``: the thread of the step creates the file that the environment variable ``REACHED`` names, and waits until the test deletes it.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spark_jobs.cli import main
from spark_jobs.protocol.steps import Step, observed_by

START = "start"
"""The value of ``SINCE`` for a count from the beginning."""


REACHED = "SPARK_JOBS_TESTS_REACHED"


def signal_jvm(number: int) -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        raise RuntimeError("no JVM was started")
    os.kill(gateway.proc.pid, number)


def orphan() -> None:
    signal_jvm(signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


def wait() -> None:
    reached = Path(os.environ[REACHED])
    reached.write_text("reached")
    while reached.exists():
        time.sleep(0.05)


FATES: dict[str, Callable[[], None]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "orphans": orphan,
    "widowed": lambda: signal_jvm(signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "waits": wait,
}


class Doom:
    """Calls ``fate`` once, before or after the n-th time that a step is passed. The count begins after the step ``since``."""

    def __init__(self, fate: Callable[[], None], step: Step, *, before: bool, occurrence: int, since: Step | None) -> None:
        self._fate, self._step, self._before, self._left = fate, step, before, occurrence
        self._since = since

    def before(self, step: Step) -> None:
        self._pass(step, before=True)

    def after(self, step: Step) -> None:
        self._pass(step, before=False)
        if step is self._since:
            self._since = None

    def _pass(self, step: Step, *, before: bool) -> None:
        if step is self._step and before == self._before and self._since is None:
            self._left -= 1
            if self._left == 0:
                self._fate()


if __name__ == "__main__":
    _, fate, step, when, occurrence, since, *arguments = sys.argv
    sys.argv[1:] = arguments
    begins = None if since == START else Step(since)
    with observed_by(Doom(FATES[fate], Step(step), before=when == "before", occurrence=int(occurrence), since=begins)):
        main()
