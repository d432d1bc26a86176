"""Waits in this process. They tolerate an unavailable storage as long as a trigger does."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from spark_jobs.background import run_with_deadline
from spark_jobs.protocol.errors import StorageError
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.limits import LIMITS, WaitLimits
from spark_jobs.waits.patience import Patience

L = TypeVar("L")
R = TypeVar("R")
T = TypeVar("T")


def wait_here(
    wait: HomeWait[L, R],
    *,
    end_s: float | None,
    timeout_s: float | None,
    log: Any,
    pause: Callable[[], object],
    check: Callable[[], object] = lambda: None,
    limits: WaitLimits = LIMITS,
) -> R:
    """Waits, and returns the result.

    Args:
        wait: The wait.
        end_s: The deadline on a monotonic clock; None: there is none.
        timeout_s: The configured time limit, for the text of the error.
        log: The log for the pipeline's activity and for storage errors.
        pause: Waits between two looks.
        check: Called repeatedly, also while a look hangs. An error that it raises ends the wait.
        limits: The time limits of the wait.

    Raises:
        StorageError: The storage was unavailable for too long, or denies access.
        StreamPipelineError: The wait has failed, or its deadline has passed.
        Exception: Any error of ``check``.
    """
    patience = Patience(end_s, limits)
    while True:
        was_away = patience.last_look_failed
        look = patient_look(wait.look, patience, log, check)
        if look is not None:
            now_s = time.monotonic()
            if was_away:
                wait.home_is_back(now_s)
            check()
            for line in wait.news(look, now_s):
                log.info(line)
            result = wait.result(look, now_s, None if end_s is None else end_s - now_s, timeout_s)
            if result is not None:
                return result
        pause()


def patient_look(look: Callable[[], T], patience: Patience, log: Any, check: Callable[[], object] = lambda: None) -> T | None:
    """Looks once; returns None if the home cannot be read and another look is allowed.

    Args:
        look: Looks once, in a thread of its own.
        patience: Decides how long the home may be unavailable.
        log: The log for storage errors.
        check: Called repeatedly, also while the look hangs. An error that it raises ends the wait.

    Raises:
        StorageError: The storage was unavailable for too long, or denies access.
    """
    silent, now_s = _silent(), time.monotonic()
    try:
        found = run_with_deadline(look, now_s + patience.look_max_s(now_s), lambda: silent, check)
    except StorageError as error:
        if error is silent or not patience.tolerates(error, time.monotonic()):  # a second look would hang, too
            raise
        log.warning("The home cannot be read: %s", error)
        return None
    patience.seen()
    return found


def look_or_fail(look: Callable[[], T], check: Callable[[], object], limits: WaitLimits = LIMITS) -> T:
    """Looks once, for a task that cannot continue without the result.

    Args:
        look: Looks once, in a thread of its own.
        check: Called repeatedly, also while the look hangs. An error that it raises ends the wait.
        limits: The time limits of the wait.

    Raises:
        StorageError: The storage did not answer for as long as a wait tolerates.
    """
    return run_with_deadline(look, time.monotonic() + limits.storage_s, _silent, check)


def _silent() -> StorageError:
    """Returns the error for a look that hangs."""
    return StorageError(
        "The home's storage does not answer.",
        safe="Nothing was changed.",
        remedy="Bring the storage back. It hangs for every process of this host. A retry waits again.",
    )
