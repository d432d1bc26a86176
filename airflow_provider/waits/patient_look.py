"""How a worker looks at a home that may be away for a while: it bears with that as a trigger does."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.errors import StorageError

T = TypeVar("T")


def patient_look(look: Callable[[], T], patience: Patience, log: Any) -> T | None:
    """What a look shows; None where nothing could be seen, and another look is worth it.

    Args:
        look: Looks once.
        patience: Knows how long a home may be away.
        log: Where a storage that is away is noted.

    Raises:
        StorageError: The storage was away for too long, or refuses.
    """
    try:
        found = look()
    except StorageError as error:
        if not patience.bears(error, time.monotonic()):
            raise
        log.warning("The home cannot be read: %s", error)
        return None
    patience.seen()
    return found
