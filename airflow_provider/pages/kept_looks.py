"""Caches the looks of the pages at homes, so that a hundred viewers of a pipeline cost its storage as much as one.

A look is kept for some seconds. After that, the next request starts a new look in a thread, and gets the old look unless the new one is
quick. A storage that hangs therefore holds one thread for each look, not one for each viewer.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

from airflow_provider.pages.look_limits import wait_with_limit

T = TypeVar("T")

QUICK_S = 0.5
"""How long a viewer waits for a new look if there is an old one."""
FORGOTTEN_AFTER_S = 900.0
KEPT_MAX = 1_000


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A look and its age."""

    value: T
    age_s: float


class _Entry:
    def __init__(self) -> None:
        self.value: Any = None
        self.seen_at_s: float | None = None
        self.asked_at_s = time.monotonic()
        self.error: Exception | None = None
        self.ended: Event | None = None
        """Set at the end of the look that is running."""
        self.began_at_s = 0.0
        """The start of the newest look."""


class KeptLooks:
    """A cache of looks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, look: Callable[[T | None], T], fresh_s: float) -> Kept[T]:
        """Returns a look that is at most ``fresh_s`` old, or the newest one if the storage does not answer quickly.

        Args:
            key: The key of the look.
            look: Looks. It gets the previous look, and may reuse values from it that never change.
            fresh_s: How long a look is kept.

        Raises:
            HTTPException: There is no look yet, and the storage does not answer.
            Exception: The error of the newest look, if no look has succeeded before.
        """
        with self._lock:
            entry = self._entry(key)
            if entry.seen_at_s is not None and time.monotonic() - entry.seen_at_s <= fresh_s:
                return Kept(entry.value, time.monotonic() - entry.seen_at_s)
            ended = entry.ended
            if ended is None:
                ended, entry.began_at_s = Event(), time.monotonic()
                entry.ended = ended
                Thread(target=self._look, args=(entry, look, ended), name="pipelines page", daemon=True).start()
            hangs = time.monotonic() - entry.began_at_s > QUICK_S
        if entry.seen_at_s is not None:
            ended.wait(0.0 if hangs else QUICK_S)
        else:
            wait_with_limit(ended, entry.began_at_s)
        with self._lock:
            if entry.seen_at_s is None:
                assert entry.error is not None
                raise entry.error
            return Kept(entry.value, time.monotonic() - entry.seen_at_s)

    def _entry(self, key: Hashable) -> _Entry:
        now_s = time.monotonic()
        if key not in self._entries and len(self._entries) >= KEPT_MAX:
            oldest = min(self._entries, key=lambda each: self._entries[each].asked_at_s)
            del self._entries[oldest]
        for old in [each for each, entry in self._entries.items() if now_s - entry.asked_at_s > FORGOTTEN_AFTER_S]:
            del self._entries[old]
        entry = self._entries.setdefault(key, _Entry())
        entry.asked_at_s = now_s
        return entry

    @staticmethod
    def _look(entry: _Entry, look: Callable[[Any], Any], ended: Event) -> None:
        try:
            entry.value, entry.error = look(entry.value), None
            entry.seen_at_s = time.monotonic()
        except Exception as error:  # noqa: BLE001 - the end of a thread: get() raises the error
            entry.error = error
        finally:
            entry.ended = None
            ended.set()
