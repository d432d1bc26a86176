"""Runs storage calls in background threads. A call that never returns blocks neither its caller nor the end of the process.

Idle threads are kept for a while, because starting a thread takes longer than a call of a store's library. Unlike the threads of an
executor they do not keep the process alive: Python waits for those at its end.
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
"""Number of jobs at a time. A disk makes many files durable in little more than the time of one."""
AT_WORK, _IDLE = "beside", "beside (idle)"
"""The names of busy and idle threads."""
_Inbox = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]
_idle: deque[_Inbox] = deque()
"""The inboxes of idle threads, the one that has waited longest first."""
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def beside(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    """Runs ``work`` in a background thread, and returns or raises its result.

    Args:
        work: The work.
        meanwhile: Called repeatedly until the work is done. Its exception is raised here. Then ``work`` is abandoned: it may go on as long
            as the process lives, and its result is dropped.
    """
    begun = begin(work)
    while not begun.done():
        try:
            return begun.result(_LOOK_S)
        except TimeoutError:  # a timeout of the work itself means that it is done
            if not begun.done():
                meanwhile()
    return begun.result()


def in_time(
    work: Callable[[], T], deadline_s: float, late: Callable[[], Exception], meanwhile: Callable[[], object] = lambda: None
) -> T:
    """Runs ``work`` as :func:`beside` does, with a deadline.

    Args:
        work: The work.
        deadline_s: Deadline by ``time.monotonic``.
        late: Makes the exception to raise at the deadline.
        meanwhile: Called repeatedly until the work is done; see :func:`beside`.
    """

    def look() -> None:
        meanwhile()
        if time.monotonic() >= deadline_s:
            raise late()

    return beside(work, look)


@contextmanager
def every(interval_s: float, look: Callable[[], object], name: str, *, now: bool = False) -> Iterator[None]:
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


def at_once(jobs: Sequence[Callable[[], Any]], threads_max: int = _AT_ONCE) -> list[Any]:
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

    for each in [begin(work) for _ in range(min(threads_max, len(jobs)))]:
        each.result()
    return [ends[number].result() for number in sorted(ends)]


def begin(work: Callable[[], T]) -> Future[T]:
    """Starts work in another thread. Returns its future."""
    future: Future[T] = Future()
    try:
        inbox = _idle.pop()  # the most recent thread has the warmest caches
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
            except ValueError:  # another caller has taken it and is about to put work into it
                continue
            return
        thread.name = AT_WORK
        end = _end(work)
        thread.name = _IDLE
        _idle.append(inbox)  # before the result is set, because its reader may need a thread
        if (error := end.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(end.result())
        del work, future, end, error  # an idle thread keeps no references


def _end(work: Callable[[], T]) -> Future[T]:
    """Returns a finished future with the result of ``work``."""
    end: Future[T] = Future()
    try:
        end.set_result(work())
    except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where the result is asked for
        end.set_exception(error)
    return end
