"""Runs work in background threads. A call that never returns blocks neither its caller nor the end of the process.

A call of a storage can hang like that.

Idle threads are kept for a while, because starting a thread takes longer than a call of a store's library. Unlike the threads of an
executor they do not keep the process alive: Python waits for those at its end.

Work of an event loop runs in lanes: each directory of homes has its own limit of threads, so that a storage that hangs holds only a few
threads of Airflow's triggerer. Homes in one directory hang together because they share a mount. The event loop itself has only a handful of
threads and needs them to resolve host names, so no work may hold those.

Most work is a look: one read of a home's state. One thread does the due work of a lane, one piece after another, because waking a thread
for each look costs many times as much. If work
waits too long, because other work hangs or the storage is far away, one more thread helps, and after that time another
one. The number of helping threads is limited in total. So every lane gets its first thread, however many others hang.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Lock, Thread, current_thread
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_LOOK_S = 0.05
"""The time between two calls of ``meanwhile``."""
_AT_ONCE = 16
"""Number of jobs at a time. A disk makes many files durable in little more than the time of one."""
AT_WORK, _IDLE = "background", "background (idle)"
"""The names of busy and idle threads."""
LANE_THREADS_MAX = 16
"""The largest number of threads that work in the homes of one directory."""
HELPERS_MAX = 192
"""The largest number of helping threads of all lanes."""
_Inbox = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]


def run_watched(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    """Runs ``work`` in a background thread, and returns or raises its result.

    Args:
        work: The work.
        meanwhile: Called repeatedly until the work is done. Its exception is raised here. Then ``work`` is abandoned: it may go on as long
            as the process lives, and its result is dropped.
    """
    begun = run_in_background(work)
    while not begun.done():
        try:
            return begun.result(_LOOK_S)
        except TimeoutError:  # a timeout of the work itself means that it is done
            if not begun.done():
                meanwhile()
    return begun.result()


def run_with_deadline(
    work: Callable[[], T], deadline_s: float, late: Callable[[], Exception], meanwhile: Callable[[], object] = lambda: None
) -> T:
    """Runs ``work`` as :func:`run_watched` does, with a deadline.

    Args:
        work: The work.
        deadline_s: Deadline by ``time.monotonic``.
        late: Makes the exception to raise at the deadline. Then ``work`` is abandoned, as by an exception of ``meanwhile``.
        meanwhile: Called repeatedly until the work is done; see :func:`run_watched`.
    """

    def look() -> None:
        meanwhile()
        if time.monotonic() >= deadline_s:
            raise late()

    return run_watched(work, look)


@contextmanager
def run_every(interval_s: float, look: Callable[[], object], name: str, *, now: bool = False) -> Iterator[None]:
    """Calls ``look`` repeatedly in a background thread while the context is open. The last call has ended when it closes.

    Args:
        interval_s: Time before each call.
        look: The function to call. It must not raise.
        name: Name of the thread.
        now: True makes the first call when the context opens. There is at least one call.
    """
    stop = Event()

    def work() -> None:
        if now:
            look()
        while not stop.wait(interval_s):
            look()

    thread = Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def try_ahead(work: Callable[[], object], purpose: str) -> None:
    """Runs work that only saves time later. The code that needs the result runs it again, so an error is only logged.

    Args:
        work: The work.
        purpose: What it does, for the log: a verb and its object.
    """
    try:
        work()
    except Exception as error:  # noqa: BLE001 - see above
        _LOG.debug("could not %s: %s", purpose, error)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Runs ``work`` in a background thread while the context is open. It has ended when the context closes.

    Raises:
        Exception: The exception of ``work``, unless the context itself raises one.
    """
    begun = run_in_background(work)
    try:
        yield
    finally:
        begun.exception()  # waits
    begun.result()


def run_all(jobs: Sequence[Callable[[], Any]], threads_max: int = _AT_ONCE) -> list[Any]:
    """Runs several jobs in threads, and returns their results in order. All started jobs have ended on return.

    Raises:
        Exception: The exception of the first job that failed. No job is started after it.
    """
    ends: dict[int, Future[Any]] = {}
    left = iter(list(enumerate(jobs)))  # each thread takes the next job from it
    failed = Event()

    def work() -> None:
        while not failed.is_set() and (taken := next(left, None)) is not None:
            number, job = taken
            end = ends[number] = _end(job)
            if end.exception() is not None:
                failed.set()

    for each in [run_in_background(work) for _ in range(min(threads_max, len(jobs)))]:
        each.result()
    return [ends[number].result() for number in sorted(ends)]


def run_ahead(jobs: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Yields the results of several jobs in order. While the caller uses one result, the next ``ahead`` jobs run in threads.

    Raises:
        Exception: The exception of a job, in its place.
    """
    left = iter(jobs)
    begun = deque(run_in_background(job) for job in islice(left, ahead))
    while begun:
        found = begun.popleft().result()
        begun.extend(run_in_background(job) for job in islice(left, 1))
        yield found


class Threads:
    """Background threads, of which the idle ones are used again.

    Args:
        kept_s: How long an idle thread waits for more work before it ends.
    """

    def __init__(self, kept_s: float = 10.0) -> None:
        self._kept_s = kept_s
        self._idle: deque[_Inbox] = deque()
        """The inboxes of idle threads, the one that has waited longest first."""
        os.register_at_fork(after_in_child=self._idle.clear)  # threads do not survive a fork

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Starts work in another thread. Returns its future."""
        future: Future[T] = Future()
        try:
            inbox = self._idle.pop()  # the most recent thread has the warmest caches
        except IndexError:
            inbox = _Inbox()
            Thread(target=self._serve, args=(inbox,), name=_IDLE, daemon=True).start()
        inbox.put((work, future))
        return future

    def _serve(self, inbox: _Inbox) -> None:
        thread = current_thread()
        while True:
            try:
                work, future = inbox.get(timeout=self._kept_s)
            except Empty:
                try:
                    self._idle.remove(inbox)
                except ValueError:  # another caller has taken it and is about to put work into it
                    continue
                return
            thread.name = AT_WORK
            end = _end(work)
            thread.name = _IDLE
            self._idle.append(inbox)  # before the result is set, because its reader may need a thread
            if (error := end.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(end.result())
            del work, future, end, error  # an idle thread keeps no references


run_in_background = Threads().run
"""Starts work in another thread of this process. Returns its future."""


def _end(work: Callable[[], T]) -> Future[T]:
    """Returns a finished future with the result of ``work``."""
    end: Future[T] = Future()
    try:
        end.set_result(work())
    except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where the result is asked for
        end.set_exception(error)
    return end


class Lanes:
    """The lanes of all homes.

    Args:
        slow_s: How long the oldest work of a lane waits before another thread helps.
    """

    def __init__(self, slow_s: float = 0.1) -> None:
        self.slow_s, self.helpers = slow_s, BoundedSemaphore(HELPERS_MAX)
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, bool], _Lane]] = WeakKeyDictionary()

    async def run(self, home: str, work: Callable[..., T], *arguments: Any, urgent: bool = False) -> T:
        """Runs ``work`` in the lane of a home, and returns its result. If the caller is cancelled, work that has already started goes on.

        Args:
            home: The URL of the home in which it works.
            work: The work.
            arguments: The arguments of ``work``.
            urgent: True runs the work in another lane of the home, with up to :data:`LANE_THREADS_MAX` threads at once. Then it does not
                wait for looks, and looks do not wait for it.
        """
        lanes, key = self._of_loops.setdefault(asyncio.get_running_loop(), {}), (home.rpartition("/")[0], urgent)
        lane = lanes.get(key) or lanes.setdefault(key, _Lane(self.slow_s, self.helpers))
        found: T = await lane.done(partial(copy_context().run, work, *arguments), LANE_THREADS_MAX if urgent else 1)
        return found


run_in_lane = Lanes().run
"""Runs work in the lane of a home, in this process; see :meth:`Lanes.run`."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    ended: "asyncio.Future[Future[Any]]"
    since_s: float
    """The time when it became due, on the event loop's clock."""


class _Lane:
    """The work in the homes of one directory, oldest first. It belongs to one event loop, which calls every method but :meth:`_work`."""

    def __init__(self, slow_s: float, helpers: BoundedSemaphore) -> None:
        self._slow_s, self._helpers = slow_s, helpers
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
                run_in_background(partial(self._work, loop))
            ended = await job.ended
        except BaseException:  # cancelled, or no thread can start
            with self._lock, suppress(ValueError):
                self._due.remove(job)
            raise
        return ended.result()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedules a call of :meth:`_help`, unless one is scheduled."""
        if not self._watched:
            self._watched = True
            loop.call_later(self._slow_s, self._help, loop)

    def _help(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts another thread if the oldest job has waited too long, and reports the ended jobs."""
        self._watched = False
        with self._lock:
            at_work = self._threads
            late = bool(self._due) and loop.time() - self._due[0].since_s >= self._slow_s and at_work < LANE_THREADS_MAX
            late = late and self._helpers.acquire(blocking=False)
            self._threads += late
        if at_work:
            self._watch(loop)
        self._tell()
        if late:
            run_in_background(partial(self._work, loop)).add_done_callback(lambda _: self._helpers.release())

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in a thread: works until no job is due."""
        while job := self._next():
            self._ended.append((job, _end(job.work)))
        try:
            loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop is closed
            self._ended.clear()

    def _next(self) -> _Job | None:
        """Returns the oldest job whose caller still waits; None if there is none. The calling thread then ends its work."""
        with self._lock:
            while self._due:
                job = self._due.popleft()
                if not job.ended.cancelled():
                    return job
            self._threads -= 1
            return None

    def _tell(self) -> None:
        """Hands the results of the ended jobs to their callers. Runs in the event loop."""
        while self._ended:
            job, ended = self._ended.popleft()
            if not job.ended.done():
                job.ended.set_result(ended)
