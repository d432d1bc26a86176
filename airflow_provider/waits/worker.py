"""Waits in a worker's process. They tolerate an unavailable storage as long as a trigger does."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.errors import StorageError
from spark_jobs.storage.beside import in_time

L = TypeVar("L")
T = TypeVar("T")


def wait_in_worker(
    look: Callable[[], L],
    judge: Callable[[L], T | None],
    *,
    patience: Patience,
    log: Any,
    pause: Callable[[], object],
    check: Callable[[], object] = lambda: None,
    home_is_back: Callable[[], object] = lambda: None,
) -> T:
    """Looks until there is a result.

    Args:
        look: Looks once, in a thread of its own.
        judge: Gets each look; returns the result, or None if the wait goes on.
        patience: Decides how long the home may be unavailable.
        log: The log for storage errors.
        pause: Waits between two looks.
        check: Called repeatedly, also while a look hangs. An error that it raises ends the wait.
        home_is_back: Called before the first look after the home was unavailable.

    Raises:
        StorageError: The storage was unavailable for too long, or denies access.
        Exception: Any error of ``judge`` or ``check``.
    """
    while True:
        was_away = patience.is_tried
        found = patient_look(look, patience, log, check)
        if found is not None:
            if was_away:
                home_is_back()
            check()
            result = judge(found)
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
        found = in_time(look, now_s + patience.look_max_s(now_s), lambda: silent, check)
    except StorageError as error:
        if error is silent or not patience.tolerates(error, time.monotonic()):  # a second look would hang, too
            raise
        log.warning("The home cannot be read: %s", error)
        return None
    patience.seen()
    return found


def look_or_fail(look: Callable[[], T], check: Callable[[], object]) -> T:
    """Looks once, for a task that cannot continue without the result.

    Args:
        look: Looks once, in a thread of its own.
        check: Called repeatedly, also while the look hangs. An error that it raises ends the wait.

    Raises:
        StorageError: The storage did not answer for as long as a wait tolerates.
    """
    return in_time(look, time.monotonic() + Patience(None).look_max_s(0.0), _silent, check)


def _silent() -> StorageError:
    return StorageError(
        "The home's storage does not answer.",
        safe="Nothing was changed.",
        remedy="Bring the storage back. It hangs for every process of this host. A retry waits again.",
    )
