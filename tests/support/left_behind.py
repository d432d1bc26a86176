"""Work that nobody waits for any more; see :mod:`spark_jobs.storage.beside`."""

import threading
import time

from spark_jobs.storage.beside import AT_WORK

_LIMIT_S = 90.0


def land_left_behind() -> None:
    """Returns once all of it has come to its end. What comes back while Python ends would end the process in its stead, as failed."""
    end_s = time.monotonic() + _LIMIT_S
    while left := [thread for thread in threading.enumerate() if thread.name == AT_WORK]:
        assert time.monotonic() < end_s, f"{len(left)} are still at work"
        time.sleep(0.005)
