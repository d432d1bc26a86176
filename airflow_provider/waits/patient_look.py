"""How a worker looks at a home that may be away for a while: it bears with that as a trigger does."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.errors import StorageError
from spark_jobs.storage.beside import in_time

T = TypeVar("T")


def patient_look(look: Callable[[], T], patience: Patience, log: Any, check: Callable[[], object] = lambda: None) -> T | None:
    """What a look shows; None where nothing could be seen, and another look is worth it.

    Args:
        look: Looks once, in a thread of its own.
        patience: Knows how long a home may be away.
        log: Where a storage that is away is noted.
        check: Called again and again meanwhile; what it raises ends the wait, also for a storage that does not answer.

    Raises:
        StorageError: The storage was away for too long, or refuses.
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


def answered(look: Callable[[], T], check: Callable[[], object]) -> T:
    """What a home says to somebody who cannot go on without it.

    Args:
        look: Looks once, in a thread of its own.
        check: Called again and again meanwhile; what it raises ends the wait.

    Raises:
        StorageError: The storage has not answered for as long as a wait bears one that is away.
    """
    return in_time(look, time.monotonic() + Patience(None).look_max_s(0.0), _silent, check)


def _silent() -> StorageError:
    return StorageError(
        "The home's storage does not answer.",
        safe="Nothing was changed.",
        remedy="Bring it back; a retry waits again. It hangs for everybody who uses it from this host.",
    )
