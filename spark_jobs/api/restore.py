"""What a run begins with, as people name it: a savepoint, and the state in so many partitions."""

import os

from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.open import open_place


def restore_from(directory: str | os.PathLike[str] | None, allow_drained: bool, take_pending: bool = False) -> RestoreFrom | None:
    """The savepoint in a directory, wherever it is read from; None where none is named.

    Raises:
        InvalidParameterError: It is no directory that can be opened, or something is said of it where none is named.
    """
    said = {"allow_drained": allow_drained, "take_pending": take_pending}
    if directory is None and any(said.values()):
        raise InvalidParameterError(
            f"{next(name for name, given in said.items() if given)} says something about a savepoint, and none is given.",
            safe="Nothing was started.",
            remedy="Name the savepoint (restore), or leave it out.",
        )
    if directory is None:
        return None
    url = open_place(os.fspath(directory)).url
    return RestoreFrom(savepoint=url, **said)


def checked_partitions(number: int | None) -> int | None:
    """In how many partitions the state is to be; None where nobody says.

    Raises:
        InvalidParameterError: It is no number of partitions.
    """
    if number is not None and number < 1:
        raise InvalidParameterError(
            f"state_partitions={number}: state is in one partition at least.",
            safe="Nothing was started.",
            remedy="Write how many there are to be, or leave it out.",
            state_partitions=number,
        )
    return number
