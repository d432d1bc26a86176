"""Clocks for code that measures time: a test waits for an event, not for time to pass."""

import time
from threading import Event

HOUR_S = 3_600.0


class ALongTimeOnce:
    """Replaces the module ``time``. Hours pass at once after an event."""

    def __init__(self, happened: Event) -> None:
        self._happened = happened

    def monotonic(self) -> float:
        return time.monotonic() + (10 * HOUR_S if self._happened.is_set() else 0.0)
