"""Guards a client whose threads and connections belong to the process that has opened it."""

import os

from spark_jobs.protocol.errors import MissingRequirementError


class OneProcess:
    """Remembers which processes have used a client: this one, and its parents by fork.

    Args:
        client: Name of the service, as the beginning of a sentence.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._used_by: set[int] = set()

    def check(self) -> None:
        """Refuses a process that was forked after its parent used the client. Otherwise marks it as a user.

        Raises:
            MissingRequirementError: The process was forked. The client's threads and connections belong to the parent.
        """
        self._used_by.add(os.getpid())
        if len(self._used_by) > 1:
            raise MissingRequirementError(
                f"{self._client} cannot be used in a process that was forked after its parent had used it.",
                remedy="Start the process with spawn, or do not use it in the parent process.",
            )
