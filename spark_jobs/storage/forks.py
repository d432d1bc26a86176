"""Which processes may use a client whose threads and connections belong to the process that has opened it."""

import os

from spark_jobs.protocol.errors import MissingRequirementError


class OneProcess:
    """Remembers the processes that have used a client: this one, and those that it was forked from.

    Args:
        client: What it speaks to, as the beginning of a sentence.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._used_by: set[int] = set()

    def check(self) -> None:
        """Refuses a process that was forked from one that has used the client; else this one has used it from now on.

        Raises:
            MissingRequirementError: It was: the client's threads have stayed in the other one, and its connections are the other one's.
        """
        self._used_by.add(os.getpid())
        if len(self._used_by) > 1:
            raise MissingRequirementError(
                f"{self._client} cannot be used in a process that was forked from one that has used it.",
                safe="Nothing was read or written.",
                remedy="Start the process anew (spawn), or let the one above it use none.",
            )
