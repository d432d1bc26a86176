"""Runs the looks of triggers in threads, so that a storage that hangs holds only a few threads of the triggerer.

The event loop has only a handful of threads itself and needs them to resolve host names. If looks held them, every trigger of Airflow
would stop. Homes in one directory hang together because they share a mount. Each directory of homes therefore has its own limit of
threads.

One thread works through the due looks of a directory, one after another, because waking a thread for each look costs many times as much.
If a look waits longer than :data:`SLOW_S`, because another look hangs or the storage is far away, one more thread helps, and after that
time another one. The number of helping threads is limited in total. So every directory gets its first thread, however many others hang.
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
"""The largest number of looks at a time into the homes of one directory."""
SLOW_S = 0.1
_THREADS_MAX = 1024
"""Threads start one by one, if work arrives while all others are busy. There are few unless storages hang."""
_threads = {urgent: ThreadPoolExecutor(_THREADS_MAX, "stream-pipeline-look") for urgent in (False, True)}
"""Urgent work has its own threads."""
HELPERS_MAX = 192
_helpers = BoundedSemaphore(HELPERS_MAX)


async def in_thread(home: str, work: Callable[..., T], *arguments: Any, urgent: bool = False) -> T:
    """Runs ``work`` in a thread and returns its result. If the caller is cancelled, work that has already started goes on.

    Args:
        home: The URL of the home in which it works.
        work: The work.
        arguments: The arguments of ``work``.
        urgent: The work waits for no look and for no other urgent work, and no look waits for it.
    """
    lanes, key = _lanes_of(asyncio.get_running_loop()), (home.rpartition("/")[0], urgent)
    lane = lanes.get(key) or lanes.setdefault(key, _Lane(_threads[urgent]))
    found: T = await lane.done(partial(copy_context().run, work, *arguments), LOOKS_AT_ONCE if urgent else 1)
    return found


class _Job(NamedTuple):
    work: Callable[[], Any]
    ended: "asyncio.Future[Future[Any]]"
    since_s: float
    """The time when it became due, on the event loop's clock."""


class _Lane:
    """The work in the homes of one directory, oldest first. It belongs to one event loop, which calls every method but :meth:`_work`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._lock = Lock()
        self._due: deque[_Job] = deque()
        self._threads = 0
        self._ended: deque[tuple[_Job, Future[Any]]] = deque()
        """The ended jobs. A thread reports them when it has no more work, or after some time, to wake the event loop once for many jobs."""
        self._watched = False

    async def done(self, work: Callable[[], Any], threads: int) -> Any:
        """Runs ``work`` and returns its result. It starts a thread at once while there are fewer than ``threads``."""
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
        except BaseException:  # cancelled, or no thread can start
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
        """Runs in a thread: works until no job is due."""
        while job := self._next():
            ended: Future[Any] = Future()
            try:
                ended.set_result(job.work())
            except BaseException as error:  # noqa: BLE001 - the end of a thread: done() raises the error
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
