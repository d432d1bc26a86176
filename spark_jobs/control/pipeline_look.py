"""Reads the state of a pipeline from its home: that of the newest attempt, checked by whether a driver is at work."""

from dataclasses import dataclass
from datetime import datetime

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import claimed_by_another, is_elsewhere, is_fresh, is_locked
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.status import read_status
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.protocol.documents import (
    AttemptDocument,
    BlockedPublication,
    Manifest,
    RunState,
    StageState,
    StartResponse,
    Status,
)
from spark_jobs.protocol.errors import Retry
from spark_jobs.protocol.ids import LossId, PipelineName, StageName
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class PipelineLook:
    """The state of a home's newest attempt."""

    state: RunState | None
    """None: nothing has run there."""
    at_work: bool
    attempt: AttemptDocument | None
    status: Status | None
    """The newest heartbeat of that attempt. It outlives the driver."""
    answer: StartResponse | None
    """The answer of an attempt whose driver is gone. None: the driver was lost."""


def look_at_pipeline(files: Files) -> PipelineLook:
    """Reads a home. Writes nothing. Needs three documents and one listing."""
    locked = is_locked(files)  # read first, because a driver answers before it ends
    attempt = Attempts(files).latest()
    if attempt is None or claimed_by_another(files, attempt.request):
        return PipelineLook(RunState.STARTING if locked else None, locked, None, None, None)
    heartbeat = read_status(files)
    at_work = locked or (is_elsewhere(files, attempt) and is_fresh(heartbeat, attempt))
    status = heartbeat if heartbeat is not None and heartbeat.attempt == attempt.attempt else None
    if at_work:
        return PipelineLook(status.state if status else RunState.STARTING, True, attempt, status, None)
    answer = Channel(files).response(attempt.request)
    ended_well = answer is not None and answer.error is None
    return PipelineLook(RunState.DONE if ended_well else RunState.FAILED, False, attempt, status, answer)


@dataclass(frozen=True)
class PipelineOverview:
    """The overview of one pipeline: its state, and the facts that a person has to know at once."""

    home: str
    """URL of the home."""
    name: PipelineName
    look: PipelineLook
    head: Manifest | None
    """The newest checkpoint from which the pipeline can be restored."""
    open_losses: frozenset[LossId] = frozenset()
    """The losses of the ledger that are neither accepted nor backfilled nor undone."""

    @property
    def blocked(self) -> BlockedPublication | None:
        """Returns the blocked publication, or None."""
        return self.look.status.blocked if self.look.status else None

    @property
    def failed_stages(self) -> dict[StageName, str]:
        """Returns the reason for each stage that has failed permanently or is being restarted."""
        stages = self.look.status.stages if self.look.status else {}
        stopped = {name: stage for name, stage in stages.items() if stage.state in (StageState.FAILED, StageState.RESTARTING)}
        return {name: f"{stage.state.value}: {stage.reason or 'no reason is known'}" for name, stage in stopped.items()}

    @property
    def reasons(self) -> list[str]:
        """Returns the reasons to look at the pipeline, gravest first."""
        found = []
        if self.look.state is RunState.FAILED and self.look.answer is None:
            found.append("The driver was lost: it has left no answer. The next start goes on from what is durable.")
        elif self.look.answer is not None and (error := self.look.answer.error) is not None:
            retried = "" if error.retry == Retry.NEVER.value else " It may be started again."
            found.append(f"{error.error}: {error.failed} {error.remedy}{retried}".strip())
        if self.look.at_work:
            found += [f"Stage {name} is {reason}" for name, reason in self.failed_stages.items()]
        if self.blocked is not None:
            found.append(self.blocked.summary)
        if self.head is not None and self.head.sinks_behind:
            found.append(
                f"Checkpoint {self.head.checkpoint} is without rows of {', '.join(self.head.behind)}, which were failing or slow."
            )
        return found

    def checkpoint_age_s(self, now: datetime) -> float | None:
        """Returns the age of the newest restorable checkpoint; None if there is none."""
        return None if self.head is None else max((now - self.head.completed_at).total_seconds(), 0.0)


def overview(files: Files) -> PipelineOverview:
    """Looks at a home that exists. Writes nothing.

    Raises:
        RejectedError: No pipeline has run there.
        CorruptDocumentError: A document of the pipeline, or of its newest attempt, cannot be used.
    """
    name = Channel(files).claimed().name
    open_losses = frozenset(LossLedger(files).names().open)
    return PipelineOverview(files.url, name, look_at_pipeline(files), newest_manifest(files), open_losses)
