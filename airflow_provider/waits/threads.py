"""Threads in which triggers look into homes: a storage that hangs holds these, and nothing else of the triggerer.

The event loop's own threads, a handful, also look up the addresses of hosts: with those held, every trigger of Airflow would stand still.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_THREADS_MAX = 64
"""They begin one by one as looks come in while all are at work: a look takes milliseconds, so there are few, unless a storage hangs."""
_threads = ThreadPoolExecutor(_THREADS_MAX, "stream-pipeline-look")


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """What ``work`` returns or raises; it goes on in its thread if the one who waits is cancelled."""
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(work, *arguments))
