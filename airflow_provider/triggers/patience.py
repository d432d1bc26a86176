"""How a trigger waits: it bears with a storage that is away for a while, and sends nothing before its task has settled."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import aclosing
from typing import Any, TypeVar

from airflow_provider.shared_looks import Pace, looks
from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError
from spark_jobs.protocol.reports import report_error

T = TypeVar("T")

SETTLE_S = 10.0
"""A trigger that fires right after its task was deferred can fail it: the scheduler may not have finished deferring."""
STORAGE_PATIENCE_S = 300.0
"""How long a home may not be readable before a wait ends with that."""


async def wait_for(
    key: Hashable,
    look: Callable[[], T],
    pace: Pace,
    same: Callable[[T, T], bool],
    see: Callable[[T, float | None], bool],
    deadline_at: float | None,
    log: Any,
) -> dict[str, Any]:
    """Looks until ``see`` has seen enough.

    Args:
        key: Whose looks these are; see :func:`airflow_provider.shared_looks.looks`.
        look: Looks once.
        pace: How often.
        same: Whether nothing has changed between two looks.
        see: Told each look, and how many seconds are left; whether it is the last one. Its errors end the wait.
        deadline_at: Seconds since 1970; None: no deadline.
        log: Where a storage that is away is noted.

    Returns:
        An event: the error as ``"error"``; empty if there was none.
    """
    end_s = None if deadline_at is None else time.monotonic() + deadline_at - time.time()
    away_since_s: float | None = None
    while True:
        try:
            async with aclosing(looks(key, look, pace, same)) as found:
                async for each in found:
                    away_since_s = None
                    if see(each, None if end_s is None else end_s - time.monotonic()):
                        return {}
        except StreamPipelineError as error:
            now_s = time.monotonic()
            away_since_s = away_since_s or now_s
            passing = isinstance(error, StorageError) and not isinstance(error, AccessDeniedError)
            if not passing or now_s - away_since_s >= STORAGE_PATIENCE_S or (end_s is not None and now_s >= end_s):
                return {"error": report_error(error).model_dump(mode="json")}
            log.warning("The home cannot be read: %s", error)
            await asyncio.sleep(pace.longest_s)


async def settled(event: Awaitable[dict[str, Any]], settle_s: float) -> dict[str, Any]:
    """The event, not before ``settle_s`` have passed."""
    began_s = time.monotonic()
    found = await event
    await asyncio.sleep(max(0.0, settle_s - (time.monotonic() - began_s)))
    return found
