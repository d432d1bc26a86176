"""Looks at homes that many waits share, in one event loop: the more often something changes, the more often it is looked at."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass
from operator import eq
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider.waits.threads import in_thread

T = TypeVar("T")

_BACKOFF = 1.5
_BEATS = 16
"""Into so many parts a pause is divided. Looks begin on a beat, many together: each costs half of what it costs alone. They begin one beat
before the pause is over, so that a triggerer has handed the event on by then where pauses are long."""
_LONGEST_S = 3.0
_LONGEST_IN_OBJECT_STORES_S = 30.0
"""Each look is paid for there."""


@dataclass(frozen=True)
class Pace:
    """How often something is looked at.

    Args:
        shortest_s: Between two looks while it changes.
        longest_s: Between two looks, once it has not changed for a while.
    """

    shortest_s: float
    longest_s: float

    @property
    def rarest_s(self) -> float:
        """Between two looks at the most, whichever of the two is longer."""
        return max(self.longest_s, self.shortest_s)

    def after(self, pause_s: float, *, changed: bool) -> float:
        """The pause that follows one of ``pause_s``."""
        return self.shortest_s if changed else min(pause_s * _BACKOFF, self.rarest_s)


def pace_at(home: str, shortest_s: float, longest_s: float | None) -> Pace:
    """The pace of looks at a home.

    Args:
        home: Its URL.
        shortest_s: Between two looks while it changes.
        longest_s: Between two looks, once it has not changed for a while; None: what suits its storage.
    """
    suits_s = _LONGEST_IN_OBJECT_STORES_S if home.startswith("s3:") else _LONGEST_S
    return Pace(shortest_s, suits_s if longest_s is None else longest_s)


@dataclass(frozen=True)
class Looking(Generic[T]):
    """What is looked at, and how."""

    home: str
    """URL of the home."""
    key: Hashable
    """What it is in it: all who give the same home, key and pace in one event loop share the looks."""
    look: Callable[[], T]
    """Looks once; runs in a thread."""
    pace: Pace
    same: Callable[[T, T], bool] = eq
    """Whether nothing worth a closer look has changed between two looks."""
    lasting: bool = True
    """Whether what is waited for stays once it is there: then somebody who comes later begins with what was seen last."""


class _Poll(Generic[T]):
    """One thing that is looked at, for everybody who waits for it."""

    def __init__(self, looking: Looking[T]) -> None:
        self._looking = looking
        self._news = asyncio.Condition()
        self._count = 0
        self._seen: T | BaseException | None = None
        self._is_looking = False
        self.waiting = 0
        self.task = asyncio.create_task(self._run())

    def first(self) -> int:
        """The number of the look that somebody begins after: the newest one is worth seeing, an old error is not.

        Where what it shows may be over by now, it is one that has not begun yet.
        """
        if not self._looking.lasting:
            return self._count + self._is_looking
        return self._count - (self._count > 0 and not isinstance(self._seen, BaseException))

    async def next(self, after: int) -> tuple[int, T]:
        """The first look after number ``after``, and its number."""
        async with self._news:
            await self._news.wait_for(lambda: self._count > after)
            if isinstance(self._seen, BaseException):
                raise self._seen
            return self._count, self._seen  # type: ignore[return-value]

    async def _run(self) -> None:
        looking = self._looking
        pause_s = looking.pace.shortest_s
        while True:
            before, self._is_looking = self._seen, True
            try:
                found: T | BaseException = await in_thread(looking.home, looking.look)
            except Exception as error:  # noqa: BLE001 - everybody who waits is told
                found = error
            known = not isinstance(before, BaseException | None) and not isinstance(found, BaseException)
            changed = not known or not looking.same(before, found)  # type: ignore[arg-type]
            async with self._news:
                self._seen, self._count, self._is_looking = found, self._count + 1, False
                self._news.notify_all()
            pause_s = looking.pace.after(pause_s, changed=changed)
            await asyncio.sleep(to_the_beat(pause_s))


def to_the_beat(pause_s: float) -> float:
    """From now to the last beat but one of a pause: the same one for all waits with such a pause."""
    beat_s = pause_s / _BEATS
    now_s = asyncio.get_running_loop().time()
    return (math.floor((now_s + pause_s) / beat_s) - 1) * beat_s - now_s


_polls: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Poll[Any]]]" = WeakKeyDictionary()


async def looks(looking: Looking[T]) -> AsyncGenerator[T, None]:
    """What is seen, again and again, for as long as somebody iterates.

    Raises:
        Exception: What a look raises. Iterating anew looks again.
    """
    polls = _polls.setdefault(asyncio.get_running_loop(), {})
    shared = (looking.home, looking.key, looking.pace)
    poll = polls.get(shared)
    if poll is None:
        poll = polls[shared] = _Poll(looking)
    poll.waiting += 1
    number = poll.first()
    try:
        while True:
            number, found = await poll.next(number)
            yield found
    finally:
        poll.waiting -= 1
        if not poll.waiting:
            poll.task.cancel()
            if polls.get(shared) is poll:
                del polls[shared]
