"""Storage that is unavailable for a while."""

from collections.abc import Callable, Container
from itertools import count
from typing import Any

from spark_jobs.protocol.errors import StorageError


def away(function: Callable[..., Any], calls: Container[int] = (0,)) -> Callable[..., Any]:
    """Wraps a function so that these calls fail with a storage error. By default the first call fails."""
    numbers = count()

    def called(*arguments: Any) -> Any:
        if next(numbers) in calls:
            raise StorageError("The disk is away.")
        return function(*arguments)

    return called
