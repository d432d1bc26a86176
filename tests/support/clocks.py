"""Clocks for what is measured by them: a test waits for something to happen, not for time to pass."""

import time
from threading import Event

HOUR_S = 3_600.0


class ALongTimeOnce:
    """As the module ``time``, but that hours pass at once when something has happened."""

    def __init__(self, happened: Event) -> None:
        self._happened = happened

    def monotonic(self) -> float:
        return time.monotonic() + (10 * HOUR_S if self._happened.is_set() else 0.0)
