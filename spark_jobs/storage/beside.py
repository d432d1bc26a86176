"""Work with a storage beside whoever watches over it: one that never answers holds neither the watcher nor the end of the process.

The threads are kept for a while after their work, as a call of a store's library takes less time than to begin one. They do not keep the
process, as those of an executor would: it waits for them when Python ends.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_S = 0.05
_KEPT_S = 10.0
_AT_ONCE = 16
"""A disk makes many files durable in little more than the time of one."""
AT_WORK, _IDLE = "beside", "beside (idle)"
"""What its threads are called."""
_Inbox = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]
_idle: deque[_Inbox] = deque()
"""Of threads that wait for work, the one that has waited longest first."""
os.register_at_fork(after_in_child=_idle.clear)  # where they have not come along


def beside(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    """Does something in a thread of its own; what it returns or raises.

    Args:
        work: What is to be done.
        meanwhile: Called again and again until it is. What it raises is raised here, and leaves ``work`` behind: it may go on for as
            long as the process lives, and nobody learns what becomes of it.
    """
    begun = begin(work)
    while not begun.done():
        try:
            return begun.result(_LOOK_S)
        except TimeoutError:  # or its own: then it is done
            if not begun.done():
                meanwhile()
    return begun.result()


def in_time(
    work: Callable[[], T], deadline_s: float, late: Callable[[], Exception], meanwhile: Callable[[], object] = lambda: None
) -> T:
    """As :func:`beside`, for as long as there is time.

    Args:
        work: What is to be done.
        deadline_s: Until when, by ``time.monotonic``.
        late: Says what is raised then.
        meanwhile: As there.
    """

    def look() -> None:
        meanwhile()
        if time.monotonic() >= deadline_s:
            raise late()

    return beside(work, look)


@contextmanager
def every(interval_s: float, look: Callable[[], object], name: str, *, now: bool = False) -> Iterator[None]:
    """Does something again and again in a thread of its own, while the context is open; its last time has ended when that closes.

    Args:
        interval_s: Before each time.
        look: What is done; it raises nothing.
        name: The thread's.
        now: The first time is when the context opens, and there is one however soon it closes.
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


def at_once(jobs: Sequence[Callable[[], Any]], threads_max: int = _AT_ONCE) -> list[Any]:
    """Does several things in as many threads; what they return, in their order. What was begun has ended by then.

    Raises:
        Exception: What the first of them that has failed raises. None is begun after it.
    """
    ends: dict[int, Future[Any]] = {}
    left = iter(list(enumerate(jobs)))  # every thread takes from it what no other has taken
    failed = Event()

    def work() -> None:
        while not failed.is_set() and (taken := next(left, None)) is not None:
            number, job = taken
            end = ends[number] = _end(job)
            if end.exception() is not None:
                failed.set()

    for each in [begin(work) for _ in range(min(threads_max, len(jobs)))]:
        each.result()
    return [ends[number].result() for number in sorted(ends)]


def begin(work: Callable[[], T]) -> Future[T]:
    """Begins work in another thread. Returns what becomes of it."""
    future: Future[T] = Future()
    try:
        inbox = _idle.pop()  # whose caches are the warmest
    except IndexError:
        inbox = _Inbox()
        Thread(target=_serve, args=(inbox,), name=_IDLE, daemon=True).start()
    inbox.put((work, future))
    return future


def _serve(inbox: _Inbox) -> None:
    thread = current_thread()
    while True:
        try:
            work, future = inbox.get(timeout=_KEPT_S)
        except Empty:
            try:
                _idle.remove(inbox)
            except ValueError:  # somebody has it, and is about to put work into it
                continue
            return
        thread.name = AT_WORK
        end = _end(work)
        thread.name = _IDLE
        _idle.append(inbox)  # before anybody learns of the end, and may want a thread
        if (error := end.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(end.result())
        del work, future, end, error  # nothing of it is kept while there is nothing to do


def _end(work: Callable[[], T]) -> Future[T]:
    """What has come of ``work``."""
    end: Future[T] = Future()
    try:
        end.set_result(work())
    except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where the result is asked for
        end.set_exception(error)
    return end
