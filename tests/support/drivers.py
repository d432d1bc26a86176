"""Real drivers on one site. Each is a process of its own with a JVM."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from spark_jobs.protocol.steps import Step
from tests.support import small_pipeline
from tests.support.doomed_driver import START
from tests.support.run_site import APPLICATION, SMALL, RunSite

ROOT = Path(__file__).parents[2]
MARK = "SPARK_JOBS_DRIVERS"
TIMEOUT_S = 180.0
SETTINGS = APPLICATION | SMALL
"""Settings of drivers. ``SMALL`` halves the warm-up of a JVM, and a driver's JVM never gets warm."""


@dataclass(frozen=True)
class Doomed:
    """A fate of :mod:`tests.support.doomed_driver`, before or after an occurrence of a step, counted from the end of ``since``."""

    fate: str
    step: Step
    before: bool
    occurrence: int = 1
    since: Step | None = None

    def __str__(self) -> str:
        return f"{self.fate} {'before' if self.before else 'after'} {self.step.value} {self.occurrence}"


@dataclass(frozen=True)
class Ended:
    """The end of a driver."""

    code: int
    """The exit code. A negative code is the number of the signal."""
    answer: dict[str, Any]
    """The answer that the driver printed for programs. Empty if it printed none."""
    stderr: str


@dataclass(frozen=True)
class Drivers:
    """Starts drivers on one site and finds their processes, even if their parents are dead."""

    site: RunSite
    entry: str = small_pipeline.__file__
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)
    """Settings of Spark."""
    host: Path | None = None
    """The working and temporary directory of drivers and their JVMs. None: that of the tests."""

    within: Sequence[str] = ()
    """A command that runs each driver."""

    def start(
        self,
        *options: str,
        run: str | None = "first",
        doom: Doomed | None = None,
        entry: str = "spark_jobs",
        command: str = "run",
    ) -> subprocess.Popen[str]:
        """Starts ``spark-jobs run``, or another command that runs a pipeline, on the site.

        Args:
            options: More options of the command.
            run: The run id. None if ``options`` contain a request.
            doom: The fate of the driver.
            entry: The module that is run as ``spark-jobs``.
            command: The command of ``spark-jobs``.
        """
        module = [entry] if doom is None else ["tests.support.doomed_driver", doom.fate, doom.step.value]
        since = START if doom is None or doom.since is None else doom.since.value
        when = [] if doom is None else ["before" if doom.before else "after", str(doom.occurrence), since]
        started = [*module, *when, command, self.entry, *self.site.options, "--output=json"]
        asked = [] if run is None else [f"--run-id={run}", *(f"--param={k}={v}" for k, v in self.site.parameters.items())]
        conf = [f"--conf={key}={value}" for key, value in self.settings.items()]
        return subprocess.Popen(
            [*self.within, sys.executable, "-m", *started, *asked, *conf, *options],
            cwd=self.host or ROOT,
            env=os.environ | {MARK: self.mark} | self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _environment(self) -> dict[str, str]:
        if self.host is None:
            return {}
        self.host.mkdir(exist_ok=True)
        java = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} "-Djava.io.tmpdir={self.host}"'
        return {"TMPDIR": str(self.host), "SPARK_SUBMIT_OPTS": java, "PYTHONPATH": str(ROOT)}

    def run(self, *options: str, run: str | None = "first", doom: Doomed | None = None) -> Ended:
        """Starts a driver and waits for its end."""
        return ended(self.start(*options, run=run, doom=doom))

    def processes(self) -> list[psutil.Process]:
        """Returns every living process of every driver."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_gone(self) -> None:
        """Waits until all processes of the drivers are gone."""
        _, alive = psutil.wait_procs(self.processes(), timeout=60)
        assert alive == []

    def end(self) -> None:
        """Ends all remaining processes, also stopped ones."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.wait_gone()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Waits for a driver's end."""
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return Ended(process.returncode, json.loads(stdout) if stdout.strip() else {}, stderr)


@contextmanager
def drivers_on(site: RunSite, entry: str = small_pipeline.__file__) -> Iterator[Drivers]:
    """Returns drivers of the pipeline in ``entry``. They end, with all processes that they started, when the context closes."""
    drivers = Drivers(site, entry)
    try:
        yield drivers
    finally:
        drivers.end()
