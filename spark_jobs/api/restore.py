"""The starting point of a run: a savepoint, and the number of state partitions."""

import os

from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.open import open_place


def restore_from(directory: str | os.PathLike[str] | None, allow_drained: bool, take_pending: bool = False) -> RestoreFrom | None:
    """Returns the savepoint in a directory, or None without a directory.

    Raises:
        InvalidParameterError: The text is not a directory that can be opened, or an option for a savepoint is given without one.
    """
    said = {"allow_drained": allow_drained, "take_pending": take_pending}
    if directory is None and any(said.values()):
        raise InvalidParameterError(
            f"{next(name for name, given in said.items() if given)} is an option for a savepoint, but no savepoint is given.",
            safe="Nothing was started.",
            remedy="Give the savepoint (restore), or leave out this option.",
        )
    if directory is None:
        return None
    url = open_place(os.fspath(directory)).url
    return RestoreFrom(savepoint=url, **said)


def checked_partitions(number: int | None) -> int | None:
    """Returns the number of state partitions, or None if none is given.

    Raises:
        InvalidParameterError: The number is below 1.
    """
    if number is not None and number < 1:
        raise InvalidParameterError(
            f"state_partitions={number}: state needs at least one partition.",
            safe="Nothing was started.",
            remedy="Give a positive number, or leave it out.",
            state_partitions=number,
        )
    return number
