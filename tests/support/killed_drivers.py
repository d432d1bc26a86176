"""Drivers of one pipeline that get SIGKILL some time after they have shown progress."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from signal import SIGKILL
from subprocess import Popen
from threading import Event

from psutil import NoSuchProcess, Process

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import RunState
from tests.support.drivers import Drivers, Ended, ended

PATIENCE_S = 300.0
LOOK_S = 0.2


class KilledDrivers:
    """Starts drivers on a site, one after the other, and kills them."""

    def __init__(self, drivers: Drivers, random: Random) -> None:
        self.drivers, self.random = drivers, random
        self.files = drivers.site.files()
        self.options: tuple[str, ...] = ()
        """Options of the drivers."""

    def start(self) -> Popen[str]:
        return self.drivers.start(*self.options, run="live")

    def table(self, name: str) -> str:
        return self.drivers.site.table(name)

    def cancel(self) -> None:
        """Cancels the newest attempt."""
        live = Channel(self.files).attempts.latest()
        assert live is not None
        owners = AttemptLease(self.files, live.attempt)
        owners.cancel(owners.take("test").owner, "the test is over")

    def wait(self, most_s: float) -> None:
        Event().wait(self.random.uniform(0.0, most_s))

    def until(self, condition: Callable[[], object], driver: Popen[str]) -> None:
        waited_s = 0.0
        while not condition():
            assert driver.poll() is None, ended(driver)
            assert waited_s < PATIENCE_S, "it did not happen"
            Event().wait(LOOK_S)
            waited_s += LOOK_S

    def comes_to_its_end(self, driver: Popen[str], progress: Callable[[], object]) -> Ended:
        """Waits for a driver's end as long as there is progress."""
        seen, waited_s = progress(), 0.0
        while driver.poll() is None:
            assert waited_s < PATIENCE_S, f"it comes no further than {seen}"
            Event().wait(LOOK_S)
            before, seen = seen, progress()
            waited_s = waited_s + LOOK_S if seen == before else 0.0
        return ended(driver)

    def attempts(self) -> int:
        return len(Channel(self.files).attempts.numbers())

    def runs(self, attempt: int) -> bool:
        """Returns True if the stages of an attempt, or of a later one, have begun."""
        status = read_status(self.files)
        return status is not None and status.attempt >= attempt and status.state is RunState.RUNNING

    def kill(self, driver: Popen[str]) -> None:
        """Kills a driver that still runs."""
        driver.send_signal(SIGKILL)
        assert ended(driver).code == -SIGKILL, "it had ended before"
        self.drivers.wait_gone()

    def workers(self, driver: Popen[str]) -> list[Process]:
        """Returns the Python processes in which a driver's stages run functions."""
        found = []
        for process in self.drivers.processes():
            with suppress(NoSuchProcess):
                if process.pid != driver.pid and "pyspark.daemon" in " ".join(process.cmdline()):
                    found.append(process)
        return found
