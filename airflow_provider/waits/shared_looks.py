"""Shares looks at homes among many waits in one event loop. A home that changes more often is looked at more often."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass
from operator import eq
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from spark_jobs.background import run_in_lane
from spark_jobs.storage.object_store_kinds import is_in_object_store

T = TypeVar("T")

_BACKOFF = 1.5
"""The factor by which the pause grows after a look without a change."""
_BEATS = 16
"""The number of parts, or beats, of a pause. All looks begin on a beat, because looks that begin together cost half as much each. A look
begins one beat before the end of its pause, so that the triggerer sends the event in time even after a long pause."""
_LONGEST_S = 3.0
"""The longest pause in a file system, unless the task sets another one."""
_LONGEST_IN_OBJECT_STORES_S = 30.0
"""The longest pause in an object store, where each look costs money."""


@dataclass(frozen=True)
class Pace:
    """The pauses between looks at a home.

    Args:
        shortest_s: The pause while something changes.
        longest_s: The pause after some time without a change.
    """

    shortest_s: float
    longest_s: float

    @property
    def rarest_s(self) -> float:
        """The longer of the two pauses."""
        return max(self.longest_s, self.shortest_s)

    def after(self, pause_s: float, *, changed: bool) -> float:
        """Returns the pause that follows a pause of ``pause_s``."""
        return self.shortest_s if changed else min(pause_s * _BACKOFF, self.rarest_s)


def pace_at(home: str, shortest_s: float, longest_s: float | None) -> Pace:
    """Returns the pace of looks at a home.

    Args:
        home: The URL of the home.
        shortest_s: The pause while something changes.
        longest_s: The pause after some time without a change; None: 3 s, and 30 s in an object store.
    """
    default_s = _LONGEST_IN_OBJECT_STORES_S if is_in_object_store(home) else _LONGEST_S
    return Pace(shortest_s, default_s if longest_s is None else longest_s)


@dataclass(frozen=True)
class Looking(Generic[T]):
    """A repeated look at a home."""

    home: str
    """The URL of the home."""
    key: Hashable
    """The subject of the look. Waits with the same home, key and pace in one event loop share their looks."""
    look: Callable[[], T]
    """Looks once, in a thread."""
    pace: Pace
    same: Callable[[T, T], bool] = eq
    """Returns True if two looks show the same state, so that the pause may grow."""
    lasting: bool = True
    """True if the result of the waits stays true. A later wait then begins with the last look."""


class _Poll(Generic[T]):
    """The repeated look of all waits that share it."""

    def __init__(self, looking: Looking[T]) -> None:
        self._looking = looking
        self._news = asyncio.Condition()
        self._count = 0
        self._seen: T | BaseException | None = None
        self._is_looking = False
        self.waiting = 0
        self.task = asyncio.create_task(self._run())

    def first(self) -> int:
        """Returns the number to pass to :meth:`next` for the first look of a new wait.

        A wait begins with the newest look, unless that look has failed. If its result may be outdated, the wait begins with a look that has
        not started yet.
        """
        if not self._looking.lasting:
            return self._count + self._is_looking
        return self._count - (self._count > 0 and not isinstance(self._seen, BaseException))

    async def next(self, after: int) -> tuple[int, T]:
        """Returns the first look after number ``after``, with its number."""
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
                found: T | BaseException = await run_in_lane(looking.home, looking.look)
            except Exception as error:  # noqa: BLE001 - next() raises it in every wait
                found = error
            known = not isinstance(before, BaseException | None) and not isinstance(found, BaseException)
            changed = not known or not looking.same(before, found)  # type: ignore[arg-type]
            async with self._news:
                self._seen, self._count, self._is_looking = found, self._count + 1, False
                self._news.notify_all()
            pause_s = looking.pace.after(pause_s, changed=changed)
            await asyncio.sleep(to_the_beat(pause_s))


def to_the_beat(pause_s: float) -> float:
    """Returns the time until the second to last beat of a pause. All waits with this pause have the same beats."""
    beat_s = pause_s / _BEATS
    now_s = asyncio.get_running_loop().time()
    return (math.floor((now_s + pause_s) / beat_s) - 1) * beat_s - now_s


_polls: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Poll[Any]]]" = WeakKeyDictionary()


async def looks(looking: Looking[T]) -> AsyncGenerator[T, None]:
    """Yields looks until the caller stops iterating.

    Raises:
        Exception: The error of a look. A new iteration looks again.
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
