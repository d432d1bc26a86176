"""Identifiers. A bare ``int`` or ``str`` never crosses a module as an id."""

from typing import NewType
from uuid import NAMESPACE_URL, uuid4, uuid5

from spark_jobs.protocol.codec import sha256

PipelineName = NewType("PipelineName", str)
PipelineUuid = NewType("PipelineUuid", str)
IncarnationId = NewType("IncarnationId", str)
"""A line of attempts that continue each other. A fresh start begins a new one."""
WorkDirectoryId = NewType("WorkDirectoryId", str)
RunId = NewType("RunId", str)
"""The id of whoever asked for a run. The same id gets the answer of the same round, for as long as that is kept."""
RequestId = NewType("RequestId", str)
"""Chosen by the asker, the same in every retry."""
StageName = NewType("StageName", str)
SinkName = NewType("SinkName", str)
InputName = NewType("InputName", str)
AppId = NewType("AppId", str)
"""The key of a Delta ``SetTransaction``: who published into a table."""

AttemptNumber = NewType("AttemptNumber", int)
RoundNumber = NewType("RoundNumber", int)
CheckpointId = NewType("CheckpointId", int)
LossId = NewType("LossId", str)
"""``<round>-<n>``: the n-th loss that was recorded in a round."""
OwnerNumber = NewType("OwnerNumber", int)
"""Counts who has taken charge of an attempt; the highest may cancel it."""
BatchId = NewType("BatchId", int)


def new_pipeline_uuid() -> PipelineUuid:
    return PipelineUuid(str(uuid4()))


def new_incarnation_id() -> IncarnationId:
    return IncarnationId(str(uuid4()))


def first_incarnation_id(pipeline: PipelineUuid) -> IncarnationId:
    """The same for all: two first starts at once begin one incarnation, and none of them abandons what the other does."""
    return IncarnationId(str(uuid5(NAMESPACE_URL, f"{pipeline}/incarnations/1")))


def new_work_directory_id() -> WorkDirectoryId:
    return WorkDirectoryId(str(uuid4()))


def new_run_id() -> RunId:
    return RunId(f"manual-{uuid4()}")


def app_id(pipeline: PipelineUuid, incarnation: IncarnationId, sink: SinkName) -> AppId:
    """The app id under which one incarnation publishes into one sink's table."""
    return AppId(f"{pipeline}/{incarnation}/{sink}")


def incarnation_of(app: AppId, pipeline: PipelineUuid) -> IncarnationId | None:
    """Returns the incarnation of ``pipeline`` that publishes under ``app``; None if the app id is not one of that pipeline."""
    found, _, rest = app.partition("/")
    incarnation, _, sink = rest.partition("/")
    return IncarnationId(incarnation) if found == pipeline and sink else None


def file_prefix(incarnation: IncarnationId, stage: StageName) -> str:
    """Returns the prefix of the names of a stage's staged files; the batch and ``-`` follow.

    By this prefix the sweep finds the stage's files, and a replacement tells the pipeline's own rows from those of others.
    """
    return f"{sha256(f'{incarnation}/{stage}'.encode())[:16]}-"


def start_request_id(attempt: AttemptNumber) -> RequestId:
    """The id of the request that attempt ``attempt`` answers."""
    return RequestId(f"start-{attempt}")


def cancel_request_id(attempt: AttemptNumber, owner: OwnerNumber) -> RequestId:
    """The id of the request by which an owner ends an attempt."""
    return RequestId(f"cancel-{attempt}-{owner}")
