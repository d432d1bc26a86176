"""What a run begins with, as people name it: a savepoint, and the state in so many partitions."""

import os

from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.open import open_files


def restore_from(
    directory: str | os.PathLike[str] | None, allow_drained: bool, allow_dropped: bool = False
) -> RestoreFrom | None:
    """The savepoint in a directory, wherever it is read from; None where none is named.

    Raises:
        InvalidParameterError: It is no directory that can be opened, or something is allowed of it where none is named.
    """
    if directory is None and (allow_drained or allow_dropped):
        raise InvalidParameterError(
            f"{'allow_drained' if allow_drained else 'allow_dropped'} says something about a savepoint, and none is given.",
            safe="Nothing was started.",
            remedy="Name the savepoint (restore), or leave it out.",
        )
    if directory is None:
        return None
    url = open_files(os.fspath(directory)).url
    return RestoreFrom(savepoint=url, allow_drained=allow_drained, allow_dropped=allow_dropped)


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
