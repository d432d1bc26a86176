"""Limits the looks at homes for pages: few at a time, and none for long. Airflow's API server needs its threads for tasks, too."""

import socket
import time
from collections.abc import Callable
from threading import BoundedSemaphore, Event
from typing import TypeVar

from fastapi import HTTPException

from spark_jobs.background import run_with_deadline

T = TypeVar("T")

LOOK_MAX_S = 10.0
PLACE_MAX_S = 1.0
"""The longest wait for one of the places. A look that does not hang frees its place soon."""
_AT_ONCE = 8
_looks = BoundedSemaphore(_AT_ONCE)


def look_with_limit(look: Callable[[], T]) -> T:
    """Looks at a home, and returns the result.

    Raises:
        HTTPException: The storage does not answer this look, or hangs in earlier ones. A look that hangs goes on in a thread of its own.
    """
    if not _looks.acquire(timeout=PLACE_MAX_S):
        raise no_answer()

    def held() -> T:
        try:
            return look()
        finally:
            _looks.release()

    return run_with_deadline(held, time.monotonic() + LOOK_MAX_S, no_answer)


def wait_with_limit(ended: Event, began_at_s: float) -> None:
    """Waits for the end of a look that another request has begun. Raises at once if that look has hung for long.

    Args:
        ended: The event that is set at the end of the look.
        began_at_s: The start of the look on ``time.monotonic``.

    Raises:
        HTTPException: The storage does not answer.
    """
    if time.monotonic() - began_at_s > LOOK_MAX_S or not _looks.acquire(timeout=PLACE_MAX_S):
        raise no_answer()
    try:
        if not ended.wait(LOOK_MAX_S):
            raise no_answer()
    finally:
        _looks.release()


def no_answer() -> HTTPException:
    """Returns the HTTP error for a storage that does not answer."""
    return HTTPException(
        503,
        f"The storage of the homes does not answer on {socket.gethostname()}, where Airflow's API server runs. Try again later.",
    )
