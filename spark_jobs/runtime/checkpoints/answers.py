"""Answers requests with complete checkpoints, and makes their savepoints, while the next checkpoints are taken."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from spark_jobs.background import run_in_background
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints


class Answers:
    """The requests whose checkpoint is complete but that have no answer yet, in the order of their checkpoints.

    The thread that takes the checkpoints calls all methods. None of them waits, except :meth:`end`.

    Args:
        requests: Answers the requests.
    """

    def __init__(self, requests: RequestedCheckpoints) -> None:
        self._requests = requests
        self._waiting: list[tuple[Sequence[CheckpointRequest], Manifest]] = []
        self._under_way: Future[None] | None = None
        """The answer to the first waiting request."""

    @property
    def waiting(self) -> list[CheckpointRequest]:
        """Returns the waiting requests."""
        return [request for asked, _ in self._waiting for request in asked]

    @property
    def checkpoints(self) -> frozenset[CheckpointId]:
        """Returns the checkpoints of these requests, from which savepoints are copied."""
        return frozenset(manifest.checkpoint for _, manifest in self._waiting)

    @property
    def copies_deleted_keys(self) -> bool:
        """Returns True if a savepoint of a pipeline with deleted keys is being copied.

        A publication would fold their table in the meantime.
        """
        if self._under_way is None:
            return False
        asked, manifest = self._waiting[0]
        is_copied = any(request.wanted is Wanted.SAVEPOINT for request in asked)
        return is_copied and any(cut.merge and cut.merge.tombstones for cut in manifest.sinks.values())

    def add(self, asked: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Adds requests that a checkpoint answers."""
        if asked:
            self._waiting.append((asked, manifest))

    def advance(self, is_settled: Callable[[Manifest], bool]) -> None:
        """Removes finished answers, and begins the next one.

        Args:
            is_settled: Returns True if a checkpoint is public, or its publication is blocked. The answer contains the result.

        Raises:
            FencedError: A later attempt is live.
            RunCancelledError: The attempt was cancelled.
        """
        if self._under_way is not None and self._under_way.done():
            ended, self._under_way = self._under_way, None
            del self._waiting[0]
            ended.result()
        if self._under_way is None and self._waiting and is_settled(self._waiting[0][1]):
            self._under_way = run_in_background(partial(self._requests.completed, *self._waiting[0]))

    def end(self) -> None:
        """Waits for the running answer. Raises nothing."""
        if self._under_way is not None:
            with suppress(Exception):
                self._under_way.result()
                del self._waiting[0]
            self._under_way = None
