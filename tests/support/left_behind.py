"""Abandoned background work; see :mod:`spark_jobs.background`."""

import threading
import time

from spark_jobs.background import AT_WORK

_LIMIT_S = 90.0


def land_left_behind() -> None:
    """Waits until all abandoned work has ended. If such work ended while Python exits, it would end the process as failed."""
    end_s = time.monotonic() + _LIMIT_S
    while left := [thread for thread in threading.enumerate() if thread.name == AT_WORK]:
        assert time.monotonic() < end_s, f"{len(left)} are still at work"
        time.sleep(0.005)
