"""A driver of a pipeline without an end that is stopped, replaced on another host, and woken late."""

from signal import SIGCONT, SIGSTOP

import psutil
import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK
from tests.support.drivers import ended
from tests.support.live_pipeline import public_ids, public_minutes
from tests.support.seeds import seed
from tests.system.test_running_killed import Live, live

__all__ = ["live", "seed"]
pytestmark = pytest.mark.spark

ROWS = 3_000


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        if process.is_running():
            process.send_signal(number)


def test_a_driver_that_wakes_late_stops_itself_and_every_row_is_public_once(live: Live) -> None:
    live.events.add(ROWS)
    first = live.drivers.start(run="live")
    live.until(lambda: public_ids(live.table("again")), first)
    live.events.add(ROWS)
    live.wait(3.0)
    stopped = live.drivers.processes()
    signal_all(stopped, SIGSTOP)
    for lock in (DRIVER_LOCK, JVM_LOCK):
        (live.drivers.site.home / lock).unlink()  # another host does not see them

    second = live.drivers.start(run="live", entry="tests.support.distant_driver")
    live.until(lambda: len(public_ids(live.table("again"))) >= live.events.rows, second)
    live.events.add(ROWS)
    signal_all(stopped, SIGCONT)
    found = ended(first)
    assert (found.code, found.answer["error"]["error"]) == (3, "FencedError"), found
    assert len(Attempts(live.files).numbers()) == 2

    live.until(lambda: len(public_ids(live.table("again"))) >= live.events.rows, second)
    live.until(lambda: len(public_minutes(live.table("minutes"))) >= len(live.events.closed_minutes()), second)
    live.cancel()
    ended(second)
    for table in ("copied", "again"):
        assert public_ids(live.table(table)) == list(range(live.events.rows))
    assert public_minutes(live.table("minutes")) == live.events.closed_minutes()
