"""A stage with timers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Reminders(StatefulProcessor):
    """Reports the number of rows of each team, a minute after the newest one. Each batch sets the timer again."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._state = handle.getValueState("state", "n long, due long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, due = self._state.get() if self._state.exists() else (0, 0)
        newest = due
        for part in rows:
            n, newest = n + len(part), max(newest, int(part["at"].max().timestamp() * 1000) + 60_000)
        if due:
            self._handle.deleteTimer(due)
        self._handle.registerTimer(newest)
        self._state.update((n, newest))
        yield pd.DataFrame()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        n, _ = self._state.get()
        yield pd.DataFrame({"team": [key[0]], "due": [expiredTimerInfo.getExpiryTimeInMs()], "n": [n]})

    def close(self) -> None:
        pass
