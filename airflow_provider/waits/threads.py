"""Threads in which triggers look into homes: a storage that hangs holds a few of these, and nothing else of the triggerer.

The event loop's own threads, a handful, also look up the addresses of hosts: with those held, every trigger of Airflow would stand still.
And homes beside each other hang together, as they are on one mount: so each directory of homes has so many threads and no more.

One thread does what is due there, one thing after the other: that costs a fraction of what it costs to hand each look to a thread that
sleeps. Where something waits for longer than :data:`SLOW_S`, because a look hangs or the storage is far away, another thread helps, and
another one after that time again. All that help are limited together: however many directories hang, any other one has a thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

LOOKS_AT_ONCE = 16
"""Into homes that are beside each other."""
SLOW_S = 0.1
_THREADS_MAX = 1024
"""They begin one by one as work comes in while all are busy: there are few, unless storages hang."""
_threads = {urgent: ThreadPoolExecutor(_THREADS_MAX, "stream-pipeline-look") for urgent in (False, True)}
"""What is urgent has others than looks have."""
HELPERS_MAX = 192
_helpers = BoundedSemaphore(HELPERS_MAX)


async def in_thread(home: str, work: Callable[..., T], *arguments: Any, urgent: bool = False) -> T:
    """What ``work`` returns or raises. If the one who waits is cancelled it goes on in its thread, where it has one already.

    Args:
        home: URL of the home that it is done in.
        work: What is done.
        arguments: Given to it.
        urgent: It waits for no look, and no look for it; nor for what else is urgent.
    """
    lanes, key = _lanes_of(asyncio.get_running_loop()), (home.rpartition("/")[0], urgent)
    lane = lanes.get(key) or lanes.setdefault(key, _Lane(_threads[urgent]))
    found: T = await lane.done(partial(copy_context().run, work, *arguments), LOOKS_AT_ONCE if urgent else 1)
    return found


class _Job(NamedTuple):
    work: Callable[[], Any]
    ended: "asyncio.Future[Future[Any]]"
    since_s: float
    """On the event loop's clock."""


class _Lane:
    """What is done in homes that are beside each other, oldest first. One event loop's: there all of it is called but for :meth:`_work`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._lock = Lock()
        self._due: deque[_Job] = deque()
        self._threads = 0
        self._ended: deque[tuple[_Job, Future[Any]]] = deque()
        """Told when a thread has nothing to do any more, or some time has passed: the event loop is woken once for many."""
        self._watched = False

    async def done(self, work: Callable[[], Any], threads: int) -> Any:
        """What ``work`` returns or raises; it has a thread at once while there are fewer than ``threads``."""
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop.time())
        with self._lock:
            self._due.append(job)
            begins = self._threads < threads
            self._threads += begins
        self._watch(loop)
        try:
            if begins:
                self._pool.submit(self._work, loop)
            ended = await job.ended
        except BaseException:  # cancelled, or there can be no thread
            with self._lock, suppress(ValueError):
                self._due.remove(job)
            raise
        return ended.result()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._watched:
            self._watched = True
            loop.call_later(SLOW_S, self._help, loop)

    def _help(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = False
        with self._lock:
            at_work = self._threads
            late = bool(self._due) and loop.time() - self._due[0].since_s >= SLOW_S and at_work < LOOKS_AT_ONCE
            late = late and _helpers.acquire(blocking=False)
            self._threads += late
        if at_work:
            self._watch(loop)
        self._tell()
        if late:
            self._pool.submit(self._work, loop).add_done_callback(lambda _: _helpers.release())

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: does what is due until nothing is."""
        while job := self._next():
            ended: Future[Any] = Future()
            try:
                ended.set_result(job.work())
            except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where it is waited for
                ended.set_exception(error)
            self._ended.append((job, ended))
        try:
            loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop is closed
            self._ended.clear()

    def _next(self) -> _Job | None:
        with self._lock:
            while self._due:
                job = self._due.popleft()
                if not job.ended.cancelled():
                    return job
            self._threads -= 1
            return None

    def _tell(self) -> None:
        while self._ended:
            job, ended = self._ended.popleft()
            if not job.ended.done():
                job.ended.set_result(ended)


_Lanes = dict[tuple[str, bool], _Lane]
_lanes: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes]" = WeakKeyDictionary()


def _lanes_of(loop: asyncio.AbstractEventLoop) -> _Lanes:
    return _lanes.setdefault(loop, {})
