"""What each command answers to a program: one JSON document, its schema shown by ``--output schema``."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.losses import LossState
from spark_jobs.protocol.checkpoint_requests import CheckpointedSink
from spark_jobs.protocol.documents import (
    BlockedPublication,
    CheckpointKind,
    ErrorReport,
    OnEnd,
    Publish,
    Publisher,
    RunState,
    SinkMode,
    SinkResult,
    Status,
)
from spark_jobs.protocol.ids import (
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    PipelineName,
    PipelineUuid,
    RequestId,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
)
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.pins import Pin


class Answer(BaseModel):
    """An answer. New fields may come; none changes its meaning."""

    model_config = ConfigDict(frozen=True)


class Failure(Answer):
    """Every command's answer when it did not do what was asked."""

    error: ErrorReport


class RunAnswer(Answer):
    """``spark-jobs run``: the run has its final checkpoint."""

    pipeline: PipelineName
    home: str
    run: RunId
    attempt: AttemptNumber
    ran: bool
    """False: the checkpoint was there before, and Spark was not started."""
    checkpoint: CheckpointId
    round: RoundNumber | None
    """This and what follows is None, or empty, where the checkpoint was discarded since: ``sinks`` is what the run was answered with."""
    drained: bool | None
    completed_at: datetime | None
    manifest: str | None
    """URL of the manifest."""
    sinks: dict[SinkName, SinkResult]
    late_rows: dict[StageName, int]
    """Rows dropped as late; only stages that dropped some."""
    violations: dict[StageName, dict[str, int]] = {}
    """By stage and expectation the rows of the round that violate it; only stages that dropped or diverted some."""
    losses: tuple[Loss, ...] = ()
    """What the round has left out, because it was gone for good."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked when the run ended; the next start tries it again."""


class TakenAnswer(Answer):
    """``spark-jobs run --request``: another driver is at work on that request."""

    request: RequestId
    attempt: AttemptNumber
    host: str
    process: int | None
    """None while that driver is still starting."""


class AttemptState(Answer):
    """The newest attempt."""

    attempt: AttemptNumber
    run: RunId
    round: RoundNumber
    host: str
    process: int
    started_at: datetime


class StatusAnswer(Answer):
    """``spark-jobs status``."""

    pipeline: PipelineName
    home: str
    at_work: bool
    """Whether a driver holds the home, as far as this host can tell."""
    attempt: AttemptState | None
    status: Status | None
    """The newest heartbeat; a hint."""
    round: RoundNumber | None
    interrupted: bool
    """True if that round has not ended and no driver is at work: the next run goes on with it."""
    checkpoint: CheckpointId | None
    """The newest complete checkpoint."""
    behind: tuple[StageName, ...] = ()
    """The stages whose tables show less than the others in it: they were failing or slow when it was cut, or are fed by such stages."""
    checkpoint_completed_at: datetime | None
    checkpoint_duration_s: float | None
    checkpoint_failures: int
    """Tries that have failed since."""
    checkpoint_failure: ErrorReport | None = None
    """Why the newest of them has failed."""
    drained: bool
    """Whether that checkpoint ends the pipeline."""
    losses: tuple[Loss, ...] = ()
    """What the newest round leaves out, because it is gone for good."""
    error: ErrorReport | None = None
    """With which the newest start was answered; None where it was not, or with success."""


class LossEntry(Answer):
    """A loss in the ledger."""

    loss: LossId
    state: LossState
    source: InputName
    stage: StageName
    lost: str
    """In words."""
    rows_at_most: int | None
    """None where nothing tells how many rows it has."""
    round: RoundNumber
    run: RunId
    attempt: AttemptNumber
    incarnation: IncarnationId
    recorded_at: datetime
    accepted_at: datetime | None = None
    reason: str | None = None
    """Of whoever has accepted it."""
    parts: Loss
    """What is lost, by its position in the source."""


class LossesAnswer(Answer):
    """``spark-jobs losses``."""

    pipeline: PipelineName
    home: str
    losses: tuple[LossEntry, ...]
    """Oldest first."""


class AcceptAnswer(Answer):
    """``spark-jobs accept``."""

    pipeline: PipelineName
    home: str
    losses: tuple[LossEntry, ...]
    """The accepted ones."""
    open: int
    """How many losses of the home are still open."""


class CheckpointEntry(Answer):
    """One checkpoint, or one try that did not become one."""

    checkpoint: CheckpointId
    outcome: Literal["complete", "subsumed", "corrupt", "failed"]
    checkpoint_kind: CheckpointKind | None
    parent: CheckpointId | None = None
    incarnation: IncarnationId | None = None
    round: RoundNumber | None = None
    run: RunId | None = None
    attempt: AttemptNumber | None = None
    request: RequestId | None = None
    """Who has asked for it, the oldest of several; None where that is not known."""
    began_at: datetime | None = None
    duration_s: float | None = None
    steps_s: dict[str, float] = {}
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    aligned: bool | None = None
    """Whether it waited until stages had read what lay before them; None where that is not known."""
    behind: tuple[StageName, ...] = ()
    """The stages that were failing at the cut, or had rows in flight before them, and those that they feed."""
    alignment_s: float = 0.0
    """How long it waited for that."""
    in_flight_rows: int = 0
    """Rows between two stages at the cut."""
    in_flight_bytes: int = 0
    new_state_files: int = 0
    """Files of Spark's own checkpoints that were copied for it,"""
    new_state_bytes: int = 0
    reused_state_files: int = 0
    """and those that an earlier one had copied."""
    reused_state_bytes: int = 0
    finished: tuple[StageName, ...] = ()
    """Stages that were at their end."""
    ended_inputs: dict[StageName, tuple[str, ...]] = {}
    """By stage that runs on those of its inputs that had ended."""
    violations: dict[StageName, dict[str, int]] = {}
    """By stage and expectation the rows that violate it since the round began."""
    drained: bool = False
    published: dict[SinkName, bool | None] = {}
    """Per sink whether its rows are public; None where the table is gone."""
    abandoned: bool = False
    """A fresh start has closed its incarnation: what is not public of it never will be."""
    error: str | None = None
    """Why a try has failed: the name of the error,"""
    problem: str | None = None
    """and what has failed, or what is wrong with the manifest, in a sentence."""


class CheckpointsAnswer(Answer):
    """``spark-jobs checkpoints``."""

    pipeline: PipelineName
    home: str
    checkpoints: list[CheckpointEntry]
    """Ascending."""


class CheckpointAnswer(Answer):
    """``spark-jobs checkpoint``, ``savepoint`` and ``stop``: the request was answered with a checkpoint."""

    pipeline: PipelineName
    home: str
    request: RequestId
    attempt: AttemptNumber
    checkpoint: CheckpointId
    duration_s: float | None
    """From its trigger to its manifest."""
    rows: int
    """Rows that it has added to the sinks."""
    size_bytes: int
    sinks: dict[SinkName, CheckpointedSink]
    savepoint: str | None
    """URL of the savepoint, where one was asked for."""
    drained: bool
    behind: tuple[SinkName, ...] = ()
    """The sinks whose tables show less than the others in the checkpoint."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked then."""


class CancelAnswer(Answer):
    """``spark-jobs cancel``: the driver has ended, and none follows by itself."""

    pipeline: PipelineName
    home: str
    attempt: AttemptNumber
    run: RunId
    cancelled: bool
    """Whether the attempt was ended, or its restart was prevented; False: it was done before."""
    checkpoint: CheckpointId | None
    """The newest complete checkpoint of the home,"""
    completed_at: datetime | None
    """and since when."""


class StageFacts(Answer):
    """Where a stage was cut."""

    batch: BatchId
    watermark_ms: int
    rows: int
    late_rows: int
    violations: dict[str, int]
    finished: bool
    drained: bool
    drain_batches: int
    undrained: tuple[str, ...]


class SinkFacts(Answer):
    """What a checkpoint adds to a sink."""

    table: str
    mode: SinkMode
    files: int
    rows: int
    size_bytes: int
    policy: Publish
    publisher: Publisher
    published: bool | None
    """None where the table is gone."""
    version: int | None
    """The Delta version in which the checkpoint is public; None while it is staged only."""
    abandoned: bool = False
    """A fresh start has closed the incarnation in the table: the rows, where they are not public, never will be."""


class TidiedFacts(Answer):
    """What became of the files of a source that a round has read."""

    tidied_at: datetime
    """When they were archived, or deleted."""
    left: tuple[str, ...] = ()
    """Files that have changed since they were read, and stay."""


class InspectAnswer(Answer):
    """``spark-jobs inspect``."""

    pipeline: PipelineName
    home: str
    checkpoint: CheckpointId
    checkpoint_kind: CheckpointKind
    parent: CheckpointId | None
    incarnation: IncarnationId
    round: RoundNumber
    run: RunId
    attempt: AttemptNumber
    on_end: OnEnd
    drained: bool
    began_at: datetime
    completed_at: datetime
    manifest: str
    parameters: dict[str, Any]
    inputs: dict[InputName, tuple[Pin, ...]]
    stages: dict[StageName, StageFacts]
    sinks: dict[SinkName, SinkFacts]
    losses: tuple[Loss, ...] = ()
    """What the round has left out, because it was gone for good."""
    tidied: dict[InputName, TidiedFacts] = {}
    """By source whose files the round has archived or deleted."""


class SavepointStage(Answer):
    """A stage in a savepoint."""

    batch: BatchId
    watermark_ms: int
    state_files: int
    state_bytes: int
    in_flight_rows: int
    """Rows that the slowest stage behind it had not read."""


class SavepointAnswer(Answer):
    """``spark-jobs inspect`` of a savepoint: every file was found right."""

    savepoint: str
    pipeline: PipelineName
    uuid: PipelineUuid
    incarnation: IncarnationId
    checkpoint: CheckpointId
    request: RequestId | None
    drained: bool
    taken_at: datetime
    files: int
    size_bytes: int
    parameters: dict[str, Any]
    stages: dict[StageName, SavepointStage]
    tables: dict[SinkName, str]


class VerifyAnswer(Answer):
    """``spark-jobs verify``: every file that the checkpoints of a home name, or a savepoint, is there, as it was written."""

    pipeline: PipelineName
    url: str
    """Of the home, or of the savepoint."""
    checkpoints: list[CheckpointId]
    """Ascending."""
    files: int
    """How many files were read,"""
    size_bytes: int
    """and how many bytes of them, as far as their sizes are recorded."""


class DamagedFile(Answer):
    """A file that is not as a checkpoint says; in ``error.evidence.damaged`` where ``spark-jobs verify`` has found some."""

    path: str
    """URL of the file."""
    problem: str


class DisposeAnswer(Answer):
    """``spark-jobs dispose``: there is no savepoint any more."""

    savepoint: str
    existed: bool
    """Whether there was anything to delete."""


class PublishAnswer(Answer):
    """``spark-jobs publish``."""

    pipeline: PipelineName
    home: str
    checkpoint: CheckpointId
    sinks: dict[SinkName, SinkResult]
    newly_published: list[SinkName]
    """The sinks that lacked the checkpoint before."""


class StageOutlook(Answer):
    """What a start would make of a stage."""

    stage: StageName
    fate: Literal["continues", "starts empty", "is dropped"]
    """With its state; without any; or the pipeline no longer has it, and its state is left behind."""
    begin: Literal["earliest", "now"] | None = None
    """Where one that is new in a pipeline that goes on begins to read its sources; None of others, and from ``validate``."""
    sources: tuple[InputName, ...] = ()
    """The sources that such a one reads,"""
    stages: tuple[StageName, ...] = ()
    """and the stages, of which it reads what they stage from then on."""
    state_bytes: int | None = None
    """The size of the state that it continues with; None of others, and from ``validate``."""


class Outlook(Answer):
    """What a start would do."""

    decision: Literal["answer", "continue", "begin", "begin_incarnation"]
    explanation: str
    round: RoundNumber
    checkpoint: CheckpointId | None
    """The checkpoint that would be answered with, or gone on from."""
    in_place: bool | None = None
    """Whether it would go on in the work directory of the attempt before, where nothing is computed again; None: it goes on with none."""
    why_not_in_place: str | None = None
    """In a few words; then a work directory is built from ``checkpoint``, and what came after it is read again."""
    stages: tuple[StageOutlook, ...] = ()
    """What would become of each; empty where nothing would run."""


class SourcePlan(Answer):
    """What a run would make of a source."""

    source: InputName
    fate: Literal["is the same", "is new", "is another one"]
    """One that is new, or another one, is read from its beginning."""


class TablePlan(Answer):
    """What a run would make of a sink's table."""

    sink: SinkName
    table: str
    """Its directory."""
    fate: Literal["is made", "goes on", "gets columns"]
    columns: tuple[str, ...] = ()
    """The columns and fields that are added, or get a wider type."""


class PlanAnswer(Answer):
    """``spark-jobs run --dry-run``: what the run would do. Nothing was written."""

    pipeline: PipelineName
    home: str
    run: RunId
    outlook: Outlook
    sources: tuple[SourcePlan, ...] = ()
    """Empty if nothing would run, as are the tables."""
    tables: tuple[TablePlan, ...] = ()
    losses: tuple[Loss, ...] = ()
    """What the run would leave out of its sources."""
    open_requests: tuple[RequestId, ...] = ()
    """Requests for checkpoints, savepoints and stops that the run would answer."""


class ValidateAnswer(Answer):
    """``spark-jobs validate``: nothing speaks against a start."""

    pipeline: PipelineName
    on_end: OnEnd
    fingerprint: str
    """Of the graph; equal for two declarations that can continue each other."""
    graph: dict[str, Any]
    parameters: dict[str, Any]
    """Without secrets."""
    tables: dict[SinkName, str]
    home: str | None
    outlook: Outlook | None
    """None without a home."""
    planned: bool = False
    """Whether Spark has checked the functions, the stages and the tables; not with ``--no-spark``."""


class WarmUpAnswer(Answer):
    """``spark-jobs warm-up``."""

    archive: str
    """The file that a JVM of this Java and this Spark starts with from now on."""
    size_bytes: int


class PipelineEntry(Answer):
    """One pipeline below a root."""

    home: str
    pipeline: PipelineName | None
    """None: the home cannot be read, see ``problem``."""
    state: RunState | None = None
    """None: nothing has run there, or the home cannot be read."""
    at_work: bool = False
    run: RunId | None = None
    attempt: AttemptNumber | None = None
    checkpoint: CheckpointId | None = None
    """The newest one that the pipeline can be restored from."""
    checkpoint_age_s: float | None = None
    blocked_since: datetime | None = None
    """Since when no table gets new rows, where one refuses them."""
    failed_stages: tuple[StageName, ...] = ()
    losses: int = 0
    """How many losses of input the checkpoint records."""
    reasons: tuple[str, ...] = ()
    """Why somebody has to look at it, the gravest first."""
    problem: str | None = None
    """Why the home cannot be read."""


class PipelinesAnswer(Answer):
    """``spark-jobs pipelines``: the pipelines below some roots."""

    roots: tuple[str, ...]
    pipelines: tuple[PipelineEntry, ...]
    left_out: int
    """How many directories were not looked at, because there are too many."""


class SavepointEntry(Answer):
    """One savepoint below a root."""

    savepoint: str
    pipeline: PipelineName | None
    """None: the savepoint is not whole, or cannot be read, see ``problem``."""
    checkpoint: CheckpointId | None = None
    """Its number in the home that it was taken in."""
    taken_at: datetime | None = None
    drained: bool = False
    files: int = 0
    size_bytes: int = 0
    problem: str | None = None


class SavepointsAnswer(Answer):
    """``spark-jobs savepoints``: the savepoints below some roots, the newest first."""

    roots: tuple[str, ...]
    savepoints: tuple[SavepointEntry, ...]
    left_out: int
    """How many directories were not looked at, because there are too many."""
