"""Makes savepoints of checkpoints that are complete, beside whoever watches over them: none holds up a cancel, or the pipeline for ever."""

import math
import time
from collections.abc import Callable
from threading import Event

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.runtime.driver.beside import beside
from spark_jobs.storage.files import Files

_PATIENCE_S = 10.0
"""So long one that was given up is waited for: it ends with the files that it has begun."""


class Exports:
    """The savepoints that one attempt makes.

    Args:
        home: The home.
        check: Called again and again while one is made. What it raises is raised to who has asked for it; what was begun stays.
        timeout_s: How long one may take. That of a stop takes as long as it takes, because the stop waits for it.
    """

    def __init__(self, home: Files, check: Callable[[], object], timeout_s: float) -> None:
        self._home, self._check, self._timeout_s = home, check, timeout_s
        self._left: set[RequestId] = set()

    def make(self, request: CheckpointRequest, manifest: Manifest, target: Files) -> None:
        """Makes the savepoint of a request; durable on return, may be repeated.

        Raises:
            DeadlineExceededError: It was not made in time. What was begun stays.
            StreamPipelineError: It cannot be made, or ``check`` has raised it.
        """
        given_up, ended = Event(), Event()
        end_s = math.inf if request.wanted is Wanted.STOP else time.monotonic() + self._timeout_s

        def go_on() -> None:
            if given_up.is_set():
                raise _too_late(request, manifest)

        def make() -> None:
            try:
                export(self._home, manifest.checkpoint, target, request=request.request, check=go_on)
            finally:
                ended.set()

        def look() -> None:
            self._check()
            if time.monotonic() >= end_s:
                raise _too_late(request, manifest)

        try:
            beside(make, look)
        except BaseException:
            given_up.set()
            if not ended.wait(_PATIENCE_S):
                self._left.add(request.request)
            raise

    def is_left(self, request: CheckpointRequest) -> bool:
        """Whether its directory may still be written to, because a storage does not answer: what is there is not to be deleted yet."""
        return request.request in self._left


def _too_late(request: CheckpointRequest, manifest: Manifest) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The savepoint for {request.request} was not made in time.",
        exists=f"Checkpoint {manifest.checkpoint}, which it was to be of, is complete, and the pipeline runs on.",
        safe="Nobody was told that there is a savepoint.",
        remedy="See whether its storage answers, or give checkpoints a longer timeout; then ask again with a new id.",
        checkpoint=manifest.checkpoint,
    )
