"""A storage that is away for a while."""

from collections.abc import Callable, Container
from itertools import count
from typing import Any

from spark_jobs.protocol.errors import StorageError


def away(function: Callable[..., Any], calls: Container[int] = (0,)) -> Callable[..., Any]:
    """The function, which cannot read the storage at these calls; by default at the first."""
    numbers = count()

    def called(*arguments: Any) -> Any:
        if next(numbers) in calls:
            raise StorageError("The disk is away.")
        return function(*arguments)

    return called
