"""A driver that is suspended during its work, replaced on another host, and resumed late."""

from signal import SIGCONT, SIGSTOP

import psutil
import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK
from tests.support.drivers import ended
from tests.support.killed_streams import Live, bounded, bounded_at_night, live
from tests.support.live_pipeline import public_ids
from tests.support.places import in_a_store_at_night
from tests.support.seeds import seed

__all__ = ["bounded", "live", "seed"]
pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 3_000


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        if process.is_running():
            process.send_signal(number)


@bounded_at_night
@in_a_store_at_night
def test_a_driver_that_wakes_late_stops_itself_and_every_row_is_public_once(live: Live) -> None:
    furthest = "copied" if live.bounded else "again"
    live.add(ROWS)
    first = live.start()
    live.until(lambda: public_ids(live.table(furthest)), first)
    live.add(ROWS)
    live.wait(3.0)
    stopped = live.drivers.processes()
    signal_all(stopped, SIGSTOP)
    for lock in (DRIVER_LOCK, JVM_LOCK):
        (live.drivers.site.home / lock).unlink()  # the locks are invisible on another host

    before = 1 if live.bounded else live.events.rows
    second = live.drivers.start(*live.options, run="live", entry="tests.support.distant_driver")
    live.until(lambda: live.runs(2) and len(public_ids(live.table(furthest))) >= before, second)
    live.add(ROWS)
    signal_all(stopped, SIGCONT)
    found = ended(first)
    assert (found.code, found.answer["error"]["error"]) == (3, "FencedError"), found
    assert len(Attempts(live.files).numbers()) == 2
    live.assert_public(second)
