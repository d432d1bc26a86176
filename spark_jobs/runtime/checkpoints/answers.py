"""Answers requests with complete checkpoints, and makes their savepoints, while the next checkpoints are taken."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.beside import begin


class Answers:
    """The requests whose checkpoint is complete and that have no answer yet, in the order of their checkpoints.

    All methods are called by the one thread that takes the checkpoints. None of them waits, except :meth:`end`.

    Args:
        requests: Answers them.
    """

    def __init__(self, requests: RequestedCheckpoints) -> None:
        self._requests = requests
        self._waiting: list[tuple[Sequence[CheckpointRequest], Manifest]] = []
        self._under_way: Future[None] | None = None
        """The answer to the first of those that wait."""

    @property
    def waiting(self) -> list[CheckpointRequest]:
        """The requests."""
        return [request for asked, _ in self._waiting for request in asked]

    @property
    def checkpoints(self) -> frozenset[CheckpointId]:
        """The checkpoints that they are answered with, and that savepoints are copied from."""
        return frozenset(manifest.checkpoint for _, manifest in self._waiting)

    @property
    def copies_deleted_keys(self) -> bool:
        """Whether a savepoint is being made of a pipeline that remembers deleted keys: publications would fold that table meanwhile."""
        if self._under_way is None:
            return False
        asked, manifest = self._waiting[0]
        is_copied = any(request.wanted is Wanted.SAVEPOINT for request in asked)
        return is_copied and any(cut.merge and cut.merge.tombstones for cut in manifest.sinks.values())

    def add(self, asked: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Takes up that a checkpoint answers requests."""
        if asked:
            self._waiting.append((asked, manifest))

    def go_on(self, is_settled: Callable[[Manifest], bool]) -> None:
        """Takes up what has ended, and begins the next answer.

        Args:
            is_settled: Returns whether a checkpoint is public, or not for some time: the answer says where it is.

        Raises:
            FencedError: A later attempt is live.
            RunCancelledError: The attempt was cancelled.
        """
        if self._under_way is not None and self._under_way.done():
            ended, self._under_way = self._under_way, None
            del self._waiting[0]
            ended.result()
        if self._under_way is None and self._waiting and is_settled(self._waiting[0][1]):
            self._under_way = begin(partial(self._requests.completed, *self._waiting[0]))

    def end(self) -> None:
        """Waits for the answer that is under way. Raises nothing."""
        if self._under_way is not None:
            with suppress(Exception):
                self._under_way.result()
                del self._waiting[0]
            self._under_way = None
