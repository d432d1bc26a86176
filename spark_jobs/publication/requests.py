"""Requests for a publication with Spark. A separate process answers them, whether a driver is running or not."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import publication_lock_path, publication_of
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.errors import ConflictError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, RequestId, publication_request_id
from spark_jobs.protocol.masking import Mask, masked_error, unmasked
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.evidence import checkpointed_sinks
from spark_jobs.storage.files import Files, local_path


def ask_publication(files: Files, checkpoint: CheckpointId) -> RequestId:
    """Returns the open request for a publication of a checkpoint. Makes it, durably, if there is none.

    All requesters of the same publication share one request. After its answer, a new request gets the next number.
    """
    requests = CheckpointRequests(files)
    ids = (publication_request_id(checkpoint, number) for number in count(1))
    return next(request for request in ids if requests.ask(request) is None)


@contextmanager
def answering(files: Files, request: RequestId, mask: Mask = unmasked) -> Iterator[CheckpointId]:
    """Answers a request for a publication. The block publishes the checkpoint. If it fails, its error is the answer.

    If the process is killed, the request stays open, and another process can answer it.

    Raises:
        RejectedError: There is no such open request.
        ConflictError: Another process is answering it.
        StreamPipelineError: An error of the block.
    """
    requests = CheckpointRequests(files)
    checkpoint = publication_of(f"{request}.json")
    if checkpoint is None or not requests.is_asked(request):
        raise RejectedError(
            f"There is no open request {request} for a publication in {files.url}.",
            safe="Nothing was published.",
            remedy="Give the number of a checkpoint instead: --checkpoint.",
            home=files.url,
            request=request,
        )
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(local_path(files, publication_lock_path(request)), request))
        except BlockingIOError:
            raise ConflictError(
                f"Another process is answering {request} in {files.url}.",
                remedy="Wait for that process.",
                home=files.url,
                request=request,
            ) from None
        try:
            yield checkpoint
            manifest = CheckpointStore(files).kept(checkpoint)  # None if a running pipeline has discarded the checkpoint since
            sinks = checkpointed_sinks(manifest) if manifest is not None else {}
            answer = _answer(request, checkpoint=checkpoint, sinks=sinks)
        except StreamPipelineError as error:
            with suppress(StreamPipelineError):  # the block's error is raised
                requests.answer(_answer(request, error=report_error(masked_error(error, mask))))
            raise
        requests.answer(answer)


def _answer(request: RequestId, *, checkpoint: CheckpointId | None = None, **parts: Any) -> CheckpointResponse:
    return CheckpointResponse(request=request, attempt=None, checkpoint=checkpoint, answered_at=datetime.now(UTC), **parts)
