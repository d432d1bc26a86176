"""Work with a storage beside whoever watches over it: one that never answers holds neither the watcher nor the end of the process."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_S = 0.05


def beside(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    """Does something in a thread of its own; what it returns or raises.

    Args:
        work: What is to be done.
        meanwhile: Called again and again until it is. What it raises is raised here, and leaves ``work`` behind: it may go on for as
            long as the process lives, and nobody learns what becomes of it.
    """
    done, _ = _started([work], 1)
    while not wait(done, _LOOK_S).done:
        meanwhile()
    found: T = done[0].result()
    return found


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


def at_once(jobs: Sequence[Callable[[], Any]], threads_max: int) -> list[Any]:
    """Does several things in as many threads; what they return, in their order. What was begun has ended by then.

    Raises:
        Exception: What the first of them that has failed raises. None is begun after it.
    """
    futures, threads = _started(jobs, threads_max)
    for thread in threads:
        thread.join()
    for each in futures:
        if each.done():
            each.result()
    return [each.result() for each in futures]


def _started(jobs: Sequence[Callable[[], Any]], threads_max: int) -> tuple[list[Future[Any]], list[Thread]]:
    """Threads that do not keep the process, as those of an executor would: it waits for them when Python ends."""
    futures: list[Future[Any]] = [Future() for _ in jobs]
    left = iter(list(zip(jobs, futures, strict=True)))  # every thread takes from it what no other has taken
    failed = Event()

    def work() -> None:
        for job, future in left:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where the result is asked for
                failed.set()
                future.set_exception(error)
            if failed.is_set():
                return

    threads = [Thread(target=work, name=f"beside-{number}", daemon=True) for number in range(min(threads_max, len(jobs)))]
    for thread in threads:
        thread.start()
    return futures, threads
