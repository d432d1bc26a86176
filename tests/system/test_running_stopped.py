"""A driver that is suspended during its work, replaced on another host, and resumed late."""

from signal import SIGCONT, SIGSTOP

import psutil
import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK
from tests.support.drivers import ended
from tests.support.live_pipeline import BOUNDED, public_ids, public_minutes
from tests.support.seeds import seed
from tests.system.test_running_killed import Live, live

__all__ = ["live", "seed"]
pytestmark = pytest.mark.spark

ROWS, FILES = 3_000, 60


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        if process.is_running():
            process.send_signal(number)


@pytest.mark.parametrize("bounded", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["live", "bounded"])
def test_a_driver_that_wakes_late_stops_itself_and_every_row_is_public_once(
    live: Live, monkeypatch: pytest.MonkeyPatch, *, bounded: bool
) -> None:
    options, furthest = [], "again"
    if bounded:
        monkeypatch.setenv(BOUNDED, "yes")
        options, furthest = ["--publish=every_checkpoint"], "copied"
    live.events.add(ROWS, FILES if bounded else 1)

    def add() -> None:
        if not bounded:  # with bounded input all rows exist from the beginning
            live.events.add(ROWS)

    first = live.drivers.start(*options, run="live")
    live.until(lambda: public_ids(live.table(furthest)), first)
    add()
    live.wait(3.0)
    stopped = live.drivers.processes()
    signal_all(stopped, SIGSTOP)
    for lock in (DRIVER_LOCK, JVM_LOCK):
        (live.drivers.site.home / lock).unlink()  # the locks are invisible on another host

    before = 1 if bounded else live.events.rows
    second = live.drivers.start(*options, run="live", entry="tests.support.distant_driver")
    live.until(lambda: live.runs(2) and len(public_ids(live.table(furthest))) >= before, second)
    add()
    signal_all(stopped, SIGCONT)
    found = ended(first)
    assert (found.code, found.answer["error"]["error"]) == (3, "FencedError"), found
    assert len(Attempts(live.files).numbers()) == 2

    if bounded:
        assert ended(second).code == 0
    else:
        live.until(lambda: len(public_ids(live.table("again"))) >= live.events.rows, second)
        live.until(lambda: len(public_minutes(live.table("minutes"))) >= len(live.events.closed_minutes()), second)
        live.cancel()
        ended(second)
    for table in ("copied", "again"):
        assert public_ids(live.table(table)) == list(range(live.events.rows))
    assert public_minutes(live.table("minutes")) == (live.events.all_minutes() if bounded else live.events.closed_minutes())
