"""Identifiers. Modules never pass a bare ``int`` or ``str`` as an id."""

from typing import NewType
from uuid import NAMESPACE_URL, uuid4, uuid5

from spark_jobs.protocol.codec import sha256

PipelineName = NewType("PipelineName", str)
PipelineUuid = NewType("PipelineUuid", str)
IncarnationId = NewType("IncarnationId", str)
"""A series of attempts, each of which continues the one before. A fresh start begins a new one."""
WorkDirectoryId = NewType("WorkDirectoryId", str)
RunId = NewType("RunId", str)
"""The requester's id of a run. The same id gets the answer of the same round while that answer is kept."""
RequestId = NewType("RequestId", str)
"""An id that the requester chooses, the same in every retry."""
StageName = NewType("StageName", str)
SinkName = NewType("SinkName", str)
InputName = NewType("InputName", str)
AppId = NewType("AppId", str)
"""The key of a Delta ``SetTransaction``. It identifies the publisher into a table."""

AttemptNumber = NewType("AttemptNumber", int)
RoundNumber = NewType("RoundNumber", int)
CheckpointId = NewType("CheckpointId", int)
LossId = NewType("LossId", str)
"""``<round>-<n>``: the n-th recorded loss of a round."""
OwnerNumber = NewType("OwnerNumber", int)
"""The number of an attempt's owner. The owner with the highest number may cancel it."""
BatchId = NewType("BatchId", int)


def new_pipeline_uuid() -> PipelineUuid:
    return PipelineUuid(str(uuid4()))


def new_incarnation_id() -> IncarnationId:
    return IncarnationId(str(uuid4()))


def first_incarnation_id(pipeline: PipelineUuid) -> IncarnationId:
    """Returns an id that is the same for all first starts.

    Two simultaneous first starts begin one incarnation and do not abandon each other.
    """
    return IncarnationId(str(uuid5(NAMESPACE_URL, f"{pipeline}/incarnations/1")))


def new_work_directory_id() -> WorkDirectoryId:
    return WorkDirectoryId(str(uuid4()))


def new_run_id() -> RunId:
    return RunId(f"manual-{uuid4()}")


def app_id(pipeline: PipelineUuid, incarnation: IncarnationId, sink: SinkName) -> AppId:
    """Returns the app id under which an incarnation publishes into a sink's table."""
    return AppId(f"{pipeline}/{incarnation}/{sink}")


def incarnation_of(app: AppId, pipeline: PipelineUuid) -> IncarnationId | None:
    """Returns the incarnation of ``pipeline`` that publishes under ``app``; None if the app id is not one of that pipeline."""
    found, _, rest = app.partition("/")
    incarnation, _, sink = rest.partition("/")
    return IncarnationId(incarnation) if found == pipeline and sink else None


def file_prefix(incarnation: IncarnationId, stage: StageName) -> str:
    """Returns the prefix of the names of a stage's staged files; the batch and ``-`` follow.

    The sweep finds the stage's files by this prefix, and a replacement distinguishes the pipeline's own rows from others.
    """
    return f"{sha256(f'{incarnation}/{stage}'.encode())[:16]}-"


def start_request_id(attempt: AttemptNumber) -> RequestId:
    """Returns the id of the request that attempt ``attempt`` answers."""
    return RequestId(f"start-{attempt}")


def publication_request_id(checkpoint: CheckpointId, number: int) -> RequestId:
    """Returns the id of the n-th request for a publication of a checkpoint with Spark."""
    return RequestId(f"publish-{checkpoint}-{number}")


def published_by(request: RequestId) -> CheckpointId:
    """Returns the checkpoint of a request for a publication."""
    return CheckpointId(int(request.split("-")[1]))


def cancel_request_id(attempt: AttemptNumber, owner: OwnerNumber) -> RequestId:
    """Returns the id of the request with which an owner cancels an attempt."""
    return RequestId(f"cancel-{attempt}-{owner}")
