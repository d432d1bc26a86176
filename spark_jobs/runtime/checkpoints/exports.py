"""Makes savepoints of complete checkpoints. Their caller can cancel each of them, and each has a deadline."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TypeVar

from spark_jobs.background import run_with_deadline
from spark_jobs.checkpoint.savepoint import abandon, export
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import DeadlineExceededError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_PATIENCE_S = 10.0
"""Time that an abandoned export is waited for. It ends with the files that it has begun."""


@dataclass(frozen=True)
class _Export:
    """An export that is under way or was abandoned."""

    request: CheckpointRequest
    manifest: Manifest
    target: Files
    given_up: Event = field(default_factory=Event)
    whole: Event = field(default_factory=Event)
    ended: Event = field(default_factory=Event)


class Exports:
    """The savepoints that one attempt makes.

    Args:
        check: Called repeatedly while a savepoint is made. Its errors are raised to the caller; files of the savepoint stay.
        timeout_s: Limit for one savepoint, or for a look at its place. The savepoint of a stop has no limit: the stop waits for it.
    """

    def __init__(self, home: Files, check: Callable[[], object], timeout_s: float) -> None:
        self._home, self._check, self._timeout_s = home, check, timeout_s
        self._left: dict[RequestId, _Export] = {}

    def make(self, request: CheckpointRequest, manifest: Manifest, target: Files) -> None:
        """Makes the savepoint of a request. It is durable on return. Idempotent.

        Raises:
            DeadlineExceededError: It was not made in time. Its files stay.
            StreamPipelineError: It cannot be made, or ``check`` has raised it.
        """
        made = _Export(request, manifest, target)
        late = _too_late(made)

        def go_on() -> None:
            if made.given_up.is_set():
                raise late

        def make() -> None:
            try:
                export(self._home, manifest.checkpoint, target, request=request.request, check=go_on)
                made.whole.set()
            finally:
                made.ended.set()

        try:
            self._in_time(make, late, math.inf if request.wanted is Wanted.STOP else self._timeout_s)
        except BaseException as error:
            made.given_up.set()
            if not made.ended.wait(_PATIENCE_S):
                self._left[request.request] = made
            if error is not late or not made.whole.is_set():
                raise

    def look(self, request: CheckpointRequest, work: Callable[[], T]) -> T:
        """Looks at the place of a savepoint, or deletes there. Returns what ``work`` returns.

        Raises:
            DeadlineExceededError: Its storage has not answered in time.
            StreamPipelineError: ``work`` or ``check`` has raised it.
        """
        return self._in_time(work, _unanswered(request), self._timeout_s)

    def is_left(self, request: RequestId) -> bool:
        """Returns True if an abandoned export may still write to the place of a savepoint, because its storage does not answer.

        Nothing may be deleted there.
        """
        left = self._left.get(request)
        return left is not None and not left.ended.is_set()

    def delete_left(self) -> None:
        """Deletes the files of abandoned exports whose requests were answered with an error, once the exports have ended."""
        for request, left in list(self._left.items()):
            if left.ended.is_set():
                del self._left[request]
                try:
                    self.look(left.request, partial(abandon, left.manifest, left.target, request=request))
                except StreamPipelineError as error:
                    _LOG.warning("files of the savepoint for %s stay until a request names their place again: %s", request, error)

    def _in_time(self, work: Callable[[], T], late: DeadlineExceededError, timeout_s: float) -> T:
        return run_with_deadline(work, time.monotonic() + timeout_s, lambda: late, self._check)


def _too_late(export: _Export) -> DeadlineExceededError:
    number = export.manifest.checkpoint
    return DeadlineExceededError(
        f"The savepoint for {export.request.request} was not made in time.",
        exists=f"Checkpoint {number} is complete, and the pipeline runs on.",
        safe="The request gets an error, not a savepoint. Its files are deleted once the storage answers.",
        remedy="Give checkpoints a longer timeout, or another target; then ask again with a new id. If files stay: spark-jobs dispose.",
        checkpoint=number,
    )


def _unanswered(request: CheckpointRequest) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The place for the savepoint of {request.request} does not answer.",
        safe="Nothing was changed there.",
        remedy="Check that its storage answers, or ask with a new id and another target.",
    )
