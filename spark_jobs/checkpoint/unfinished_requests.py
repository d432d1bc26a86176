"""Finds the results of a request whose checkpoint is complete, but whose driver was gone before it answered."""

from typing import NamedTuple

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.home.layout import SAVEPOINT, request_path
from spark_jobs.home.savepoint_place import savepoint_place
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted, wanted_by
from spark_jobs.protocol.errors import IncompleteError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.storage.files import Files, read_document


class UnfinishedRequest(NamedTuple):
    """The checkpoint and the savepoint of a request that was not answered."""

    checkpoint: CheckpointId
    savepoint: str | None
    """URL of its savepoint; None if it is incomplete or was not requested."""


def unfinished_request(home: Files, request: RequestId) -> UnfinishedRequest | None:
    """Returns the results of an unanswered request, or None if its checkpoint is not complete. Writes nothing.

    Raises:
        StorageError: The home does not answer.
    """
    head = CheckpointStore(home).head()
    if head is None or head.request != request:
        return None
    return UnfinishedRequest(head.checkpoint, _whole(home, request, head.checkpoint))


def incomplete(failed: str, request: RequestId, found: UnfinishedRequest, remedy: str) -> IncompleteError:
    """Returns the error for a request whose checkpoint is complete, but whose answer is open. The error names the savepoint."""
    made = f"Checkpoint {found.checkpoint} is complete: it is the requested one"
    if found.savepoint is not None:
        made += f". So is its savepoint: {found.savepoint}"
    elif wanted_by(request) is not Wanted.CHECKPOINT:
        made += "; its savepoint is not complete yet"
    return IncompleteError(
        failed,
        exists=f"{made}.",
        safe="Nothing was lost, and nothing was published twice.",
        remedy=remedy,
        request=request,
        checkpoint=found.checkpoint,
        savepoint=found.savepoint,
    )


def _whole(home: Files, request: RequestId, checkpoint: CheckpointId) -> str | None:
    """Returns the URL of a request's complete savepoint, or None, also if it cannot be read."""
    try:
        place = savepoint_place(home, read_document(home, request_path(request), CheckpointRequest))
        found = read_document(place, SAVEPOINT, Savepoint)
    except StreamPipelineError:
        return None
    return place.url if (found.request, found.checkpoint) == (request, checkpoint) else None
