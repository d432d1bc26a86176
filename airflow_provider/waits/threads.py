"""Threads in which triggers look into homes: a storage that hangs holds a few of these, and nothing else of the triggerer.

The event loop's own threads, a handful, also look up the addresses of hosts: with those held, every trigger of Airflow would stand still.
And homes beside each other hang together, as they are on one mount: so each directory of homes has so many threads and no more.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

LOOKS_AT_ONCE = 16
"""Into homes that are beside each other."""
_THREADS_MAX = 256
"""They begin one by one as work comes in while all are busy: a look takes milliseconds, so there are few, unless storages hang."""
_threads = ThreadPoolExecutor(_THREADS_MAX, "stream-pipeline-look")
_Slots = defaultdict[tuple[str, bool], asyncio.Semaphore]
_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots]" = WeakKeyDictionary()


async def in_thread(home: str, work: Callable[..., T], *arguments: Any, urgent: bool = False) -> T:
    """What ``work`` returns or raises; it goes on in its thread if the one who waits is cancelled.

    Args:
        home: URL of the home that it is done in.
        work: What is done.
        arguments: Given to it.
        urgent: It waits for no look, and no look for it.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    slots = _slots_of(loop)[home.rpartition("/")[0], urgent]
    await slots.acquire()

    job = _threads.submit(context.run, work, *arguments)
    try:
        return await asyncio.wrap_future(job)
    finally:
        if job.done():
            slots.release()
        else:  # nobody waits any more, and a look that hangs keeps its place
            job.add_done_callback(partial(_release, loop, slots))


def _slots_of(loop: asyncio.AbstractEventLoop) -> _Slots:
    if loop not in _slots:
        _slots[loop] = defaultdict(lambda: asyncio.Semaphore(LOOKS_AT_ONCE))
    return _slots[loop]


def _release(loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore, _: object) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(slots.release)
