"""The driver's side of requests for a checkpoint: sees them, and answers them with what became of the try."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointedSink, CheckpointResponse
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import NotFoundError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.evidence import version_with
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0


class RequestedCheckpoints:
    """What the coordinator of a running pipeline needs to know of requests. No failure here ends an attempt: it is logged.

    A request that could not be answered stays open, and is answered with the next checkpoint, or by the next attempt.

    Args:
        home: The home.
        attempt: The live attempt.
        mask: Takes secrets out of what is written.
        interval_s: Between two looks at the home.
        now_s: A clock.
    """

    def __init__(
        self,
        home: Files,
        attempt: AttemptNumber,
        mask: Mask,
        *,
        interval_s: float = _INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._requests = CheckpointStore(home), CheckpointRequests(home)
        self._attempt, self._mask = attempt, mask
        self._interval_s, self._now_s = interval_s, now_s
        self._look_at_s = now_s()

    def resume(self, head: Manifest | None) -> None:
        """Answers what the attempt before has not come to: it may have died between its last manifest and the answer.

        Args:
            head: The checkpoint that this attempt goes on from.
        """
        if head is not None:
            self.completed([request for request in self._open() if request == head.request], head)

    def open(self) -> Sequence[RequestId]:
        """The open requests, the oldest first; looks at the home once in a while, and sees none in between."""
        if self._now_s() < self._look_at_s:
            return ()
        self._look_at_s = self._now_s() + self._interval_s
        return self._open()

    def completed(self, requests: Sequence[RequestId], manifest: Manifest) -> None:
        """Answers all of ``requests``, which were there when the checkpoint was triggered."""
        if not requests:
            return
        with _logged("a request for a checkpoint could not be answered"):
            sinks = {name: _sink(cut, manifest.checkpoint) for name, cut in manifest.sinks.items()}
            self._answer(
                CheckpointResponse(
                    request=request,
                    attempt=self._attempt,
                    checkpoint=manifest.checkpoint,
                    duration_s=max((manifest.completed_at - manifest.began_at).total_seconds(), 0.0),
                    sinks=sinks,
                    answered_at=datetime.now(UTC),
                )
                for request in requests
            )

    def failed(self, requests: Sequence[RequestId], error: StreamPipelineError) -> None:
        """Answers with the error of the try; with the checkpoint, where only what follows its manifest has failed."""
        if not requests:
            return
        with _logged("a request for a checkpoint could not be answered"):
            head = self._store.head()
            if head is not None and head.request in requests:
                self.completed(requests, head)
                return
            report = report_error(masked_error(error, self._mask))
            self._answer(
                CheckpointResponse(
                    request=request, attempt=self._attempt, checkpoint=None, error=report, answered_at=datetime.now(UTC)
                )
                for request in requests
            )

    def _open(self) -> Sequence[RequestId]:
        found: Sequence[RequestId] = ()
        with _logged("whether somebody asks for a checkpoint cannot be read"):
            found = self._requests.open()
        return found

    def _answer(self, responses: Iterable[CheckpointResponse]) -> None:
        for response in responses:
            self._requests.answer(response)
        self._requests.forget_old(datetime.now(UTC))


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except StreamPipelineError as error:
        _LOG.warning("%s: %s", what, error)


def _sink(cut: SinkCut, checkpoint: CheckpointId) -> CheckpointedSink:
    try:
        version = version_with(cut, checkpoint)
    except NotFoundError:
        version = None  # the table is gone; the checkpoint is not
    return CheckpointedSink(table=cut.table, version=version, rows=cut.actions.rows, size_bytes=cut.actions.size_bytes)
