"""The answers of commands to a program: one JSON document each, whose schema ``--output schema`` shows."""

import ast
import inspect
import sys
from datetime import datetime
from functools import cache
from types import ModuleType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from spark_jobs.control.losses import LossState
from spark_jobs.protocol.checkpoint_requests import CheckpointedSink
from spark_jobs.protocol.documents import (
    AttemptFacts,
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
    TidiedFiles,
)
from spark_jobs.protocol.history import CutFacts
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
from spark_jobs.protocol.stage_cut import StagePosition


class Answer(BaseModel):
    """An answer. New fields may be added; no field changes its meaning."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, *documents: BaseModel, **own: Any) -> Self:
        """Returns the answer with the fields of durable documents that have the same names, and with ``own``. The last one wins."""
        shared = {name: getattr(each, name) for each in documents for name in type(each).model_fields if name in cls.model_fields}
        return cls(**shared | own)


class Failure(Answer):
    """The answer of every command that failed."""

    error: ErrorReport
    code: str | None
    """The stable name of the error in the documentation. None: a defect, or an interrupted command."""
    documentation: str | None
    """The section of the documentation that explains the error."""


class RunAnswer(Answer):
    """The answer of ``spark-jobs run``: the run has its final checkpoint."""

    pipeline: PipelineName
    home: str
    run: RunId
    attempt: AttemptNumber
    ran: bool
    """False: the checkpoint existed before, and Spark was not started."""
    checkpoint: CheckpointId
    round: RoundNumber | None
    """This and the following fields are None or empty if the checkpoint was discarded since. ``sinks`` is from the run's answer."""
    drained: bool | None
    completed_at: datetime | None
    manifest: str | None
    """URL of the manifest."""
    sinks: dict[SinkName, SinkResult]
    late_rows: dict[StageName, int]
    """Rows dropped as late, by stage. Stages without late rows are left out."""
    violations: dict[StageName, dict[str, int]] = {}
    """Rows of the round that violate an expectation, by stage and expectation. Only stages that dropped or diverted rows are here."""
    losses: tuple[Loss, ...] = ()
    """Rows that the round has left out because they were lost."""
    exact: bool | None = None
    """True if the checkpoint lacks no rows, except those whose loss is accepted. None if it was discarded since."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked when the run ended. The next start tries it again."""


class TakenAnswer(Answer):
    """The answer of ``spark-jobs run --request`` if another driver is working on that request."""

    request: RequestId
    attempt: AttemptNumber
    host: str
    process: int | None
    """None while that driver is starting."""


class AttemptState(AttemptFacts, Answer):
    """The newest attempt."""


class StatusAnswer(Answer):
    """The answer of ``spark-jobs status``."""

    pipeline: PipelineName
    home: str
    at_work: bool
    """True if a driver holds the home, as far as this host can tell."""
    attempt: AttemptState | None
    status: Status | None
    """The newest heartbeat. It may be out of date."""
    round: RoundNumber | None
    interrupted: bool
    """True if that round has not ended and no driver is at work. The next run goes on with it."""
    checkpoint: CheckpointId | None
    """The newest complete checkpoint."""
    behind: tuple[StageName, ...] = ()
    """The stages whose tables show less than others in this checkpoint. They, or stages upstream, were failing or slow at the cut."""
    checkpoint_completed_at: datetime | None
    checkpoint_duration_s: float | None
    checkpoint_failures: int
    """Number of failed tries since then."""
    checkpoint_failure: ErrorReport | None = None
    """The error of the newest failed try."""
    drained: bool
    """True if that checkpoint ends the pipeline."""
    losses: tuple[Loss, ...] = ()
    """Rows that the newest round leaves out because they are lost."""
    exact: bool | None = None
    """True if that checkpoint lacks no rows, except those whose loss is accepted. None without a checkpoint."""
    budget_left_rows: dict[StageName, int] = {}
    """The number of rows that each stage with ``tolerate=`` may still lose."""
    error: ErrorReport | None = None
    """The error that answered the newest start; None if it has no answer, or succeeded."""


class LossEntry(Answer):
    """A loss in the ledger."""

    loss: LossId
    state: LossState
    source: InputName
    stage: StageName
    lost: str
    """The loss in words."""
    rows_at_most: int | None
    """None if the number of rows is unknown."""
    round: RoundNumber
    run: RunId
    attempt: AttemptNumber
    incarnation: IncarnationId
    recorded_at: datetime
    accepted_at: datetime | None = None
    reason: str | None = None
    """The reason of the person who accepted it."""
    backfilled_at: datetime | None = None
    checkpoint: CheckpointId | None = None
    """The first checkpoint with its rows, if it is backfilled."""
    parts: Loss
    """The lost rows by their position in the source."""


class LossesAnswer(Answer):
    """The answer of ``spark-jobs losses``."""

    pipeline: PipelineName
    home: str
    losses: tuple[LossEntry, ...]
    """Oldest first."""


class AcceptAnswer(Answer):
    """The answer of ``spark-jobs accept``."""

    pipeline: PipelineName
    home: str
    losses: tuple[LossEntry, ...]
    """The accepted ones."""
    open: int
    """Number of losses of the home that are still open."""


class CheckpointEntry(CutFacts, Answer):
    """One checkpoint, or one try that failed."""

    outcome: Literal["complete", "subsumed", "corrupt", "failed"]
    checkpoint_kind: CheckpointKind | None
    parent: CheckpointId | None = None
    incarnation: IncarnationId | None = None
    round: RoundNumber | None = None
    run: RunId | None = None
    attempt: AttemptNumber | None = None
    request: RequestId | None = None
    """The request for it, the oldest of several; None if it is not known."""
    began_at: datetime | None = None
    duration_s: float | None = None
    steps_s: dict[str, float] = {}
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    drained: bool = False
    published: dict[SinkName, bool | None] = {}
    """True for a sink whose rows are public; None if its table is missing."""
    abandoned: bool = False
    """True if a fresh start has closed its incarnation. Rows that are not public will never be."""
    exact: bool | None = None
    """True if a complete checkpoint lacks no rows, except those whose loss is accepted. None for others."""
    error: str | None = None
    """The name of the error of a failed try."""
    problem: str | None = None
    """A sentence that describes the error of a try, or the fault of the manifest."""


class CheckpointsAnswer(Answer):
    """The answer of ``spark-jobs checkpoints``."""

    pipeline: PipelineName
    home: str
    checkpoints: list[CheckpointEntry]
    """Checkpoints in ascending order."""


class CheckpointAnswer(Answer):
    """The answer of ``spark-jobs checkpoint``, ``savepoint`` and ``stop``: the request has its checkpoint."""

    pipeline: PipelineName
    home: str
    request: RequestId
    attempt: AttemptNumber
    checkpoint: CheckpointId
    duration_s: float | None
    """Time from its trigger to its manifest."""
    rows: int
    """Rows that it has added to the sinks."""
    size_bytes: int
    sinks: dict[SinkName, CheckpointedSink]
    savepoint: str | None
    """URL of the savepoint, if one was requested."""
    drained: bool
    behind: tuple[SinkName, ...] = ()
    """The sinks whose tables show less than the others in the checkpoint."""
    blocked: BlockedPublication | None = None
    """The publication that was blocked at the time of the answer."""


class CancelAnswer(Answer):
    """The answer of ``spark-jobs cancel``: the driver has ended, and none starts by itself."""

    pipeline: PipelineName
    home: str
    attempt: AttemptNumber
    run: RunId
    cancelled: bool
    """True if this cancelled the attempt or its restart; False if it was done before."""
    checkpoint: CheckpointId | None
    """The newest complete checkpoint of the home."""
    completed_at: datetime | None
    """The time at which that checkpoint was completed."""


class StageFacts(StagePosition, Answer):
    """The position of a stage in a checkpoint."""


class SinkFacts(Answer):
    """The rows that a checkpoint adds to a sink."""

    table: str
    mode: SinkMode
    files: int
    rows: int
    size_bytes: int
    policy: Publish
    publisher: Publisher
    published: bool | None
    """True if the rows are public; None if the table is missing."""
    version: int | None
    """The Delta version in which the checkpoint is public; None while it is only staged."""
    abandoned: bool = False
    """True if a fresh start has closed the incarnation in the table. Rows that are not public will never be."""


class TidiedFacts(TidiedFiles, Answer):
    """The files of a source that were archived or deleted after a round."""


class InspectAnswer(Answer):
    """The answer of ``spark-jobs inspect``."""

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
    """Rows that the round has left out because they were lost."""
    exact: bool = True
    """True if the checkpoint lacks no rows, except those whose loss is accepted."""
    tidied: dict[InputName, TidiedFacts] = {}
    """The archived or deleted files of the round, by source."""


class SavepointStage(Answer):
    """A stage in a savepoint."""

    batch: BatchId
    watermark_ms: int
    state_files: int
    state_bytes: int
    in_flight_rows: int
    """Rows that the slowest stage downstream had not read."""


class SavepointAnswer(Answer):
    """The answer of ``spark-jobs inspect`` for a savepoint: every file is intact."""

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
    """The answer of ``spark-jobs verify``: every file of the home's checkpoints, or of the savepoint, is there and unchanged."""

    pipeline: PipelineName
    url: str
    """URL of the home or of the savepoint."""
    checkpoints: list[CheckpointId]
    """Checkpoint numbers in ascending order."""
    files: int
    """Number of files that were read."""
    size_bytes: int
    """Bytes that were read, as far as sizes are recorded."""


class DamagedFile(Answer):
    """A file that differs from the checkpoint's record. ``spark-jobs verify`` lists them in ``error.evidence.damaged``."""

    path: str
    """URL of the file."""
    problem: str


class DisposeAnswer(Answer):
    """The answer of ``spark-jobs dispose``: the savepoint does not exist any more."""

    savepoint: str
    existed: bool
    """True if there was something to delete."""


class PublishAnswer(Answer):
    """The answer of ``spark-jobs publish``."""

    pipeline: PipelineName
    home: str
    checkpoint: CheckpointId
    sinks: dict[SinkName, SinkResult]
    newly_published: list[SinkName]
    """The sinks that lacked the checkpoint before."""


class StageOutlook(Answer):
    """The effect of a start on a stage."""

    stage: StageName
    fate: Literal["continues", "starts empty", "is dropped"]
    """The stage continues with its state, starts without state, or is no longer in the pipeline and leaves its state behind."""
    begin: Literal["earliest", "now"] | None = None
    """Where a new stage of a running pipeline begins to read its sources; None for other stages, and from ``validate``."""
    sources: tuple[InputName, ...] = ()
    """The sources that such a stage reads."""
    stages: tuple[StageName, ...] = ()
    """The stages that such a stage reads. It reads only the rows that they stage from then on."""
    state_bytes: int | None = None
    """The size of the state that it continues with; None for other stages, and from ``validate``."""


class Outlook(Answer):
    """The effect of a start."""

    decision: Literal["answer", "continue", "begin", "begin_incarnation"]
    explanation: str
    round: RoundNumber
    checkpoint: CheckpointId | None
    """The checkpoint that answers the start, or that it goes on from."""
    in_place: bool | None = None
    """True if it would go on in the previous attempt's work directory, without computing anything again; None: it goes on with none."""
    why_not_in_place: str | None = None
    """The reason in a few words. A work directory is then built from ``checkpoint``, and all later rows are read again."""
    stages: tuple[StageOutlook, ...] = ()
    """The effect on each stage; empty if nothing would run."""


class SourcePlan(Answer):
    """The effect of a run on a source."""

    source: InputName
    fate: Literal["is the same", "is new", "is another one"]
    """A new or another source is read from its beginning."""


class TablePlan(Answer):
    """The effect of a run on a sink's table."""

    sink: SinkName
    table: str
    """The directory of the table."""
    fate: Literal["is made", "goes on", "gets columns"]
    columns: tuple[str, ...] = ()
    """The columns and fields that are added or get a wider type."""


class PlanAnswer(Answer):
    """The answer of ``spark-jobs run --dry-run``: the plan of the run. Nothing was written."""

    pipeline: PipelineName
    home: str
    run: RunId
    outlook: Outlook
    sources: tuple[SourcePlan, ...] = ()
    """The plan of each source. This list and the list of tables are empty if nothing would run."""
    tables: tuple[TablePlan, ...] = ()
    losses: tuple[Loss, ...] = ()
    """The rows that the run would leave out of its sources."""
    open_requests: tuple[RequestId, ...] = ()
    """Requests for checkpoints, savepoints and stops that the run would answer."""


class ValidateAnswer(Answer):
    """The answer of ``spark-jobs validate``: a start would be accepted."""

    pipeline: PipelineName
    on_end: OnEnd
    fingerprint: str
    """Fingerprint of the graph. Declarations with the same fingerprint can continue each other."""
    graph: dict[str, Any]
    parameters: dict[str, Any]
    """The parameters without secrets."""
    tables: dict[SinkName, str]
    home: str | None
    outlook: Outlook | None
    """None without a home."""
    planned: bool = False
    """True if Spark has checked the functions, the stages and the tables; False with ``--no-spark``."""


class WarmUpAnswer(Answer):
    """The answer of ``spark-jobs warm-up``."""

    archive: str
    """The archive from which a JVM of this Java and this Spark starts from now on."""
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
    """The newest checkpoint that the pipeline can be restored from."""
    checkpoint_age_s: float | None = None
    blocked_since: datetime | None = None
    """Time since which no table gets new rows because a table refuses its rows."""
    failed_stages: tuple[StageName, ...] = ()
    losses: int = 0
    """Number of losses of input that are still open."""
    reasons: tuple[str, ...] = ()
    """The reasons why somebody has to look at the pipeline, gravest first."""
    problem: str | None = None
    """The reason why the home cannot be read."""


class PipelinesAnswer(Answer):
    """The answer of ``spark-jobs pipelines``: the pipelines below the given roots."""

    roots: tuple[str, ...]
    pipelines: tuple[PipelineEntry, ...]
    left_out: int
    """Number of directories that were skipped because there are too many."""


class SavepointEntry(Answer):
    """One savepoint below a root."""

    savepoint: str
    pipeline: PipelineName | None
    """None: the savepoint is incomplete or cannot be read; see ``problem``."""
    checkpoint: CheckpointId | None = None
    """Number of the checkpoint in the home of the savepoint."""
    taken_at: datetime | None = None
    drained: bool = False
    files: int = 0
    size_bytes: int = 0
    problem: str | None = None


class SavepointsAnswer(Answer):
    """The answer of ``spark-jobs savepoints``: the savepoints below the given roots, newest first."""

    roots: tuple[str, ...]
    savepoints: tuple[SavepointEntry, ...]
    left_out: int
    """Number of directories that were skipped because there are too many."""


def described_schema(answer: Any) -> dict[str, Any]:
    """Returns the JSON schema of an answer. The docstring of a field, in its class or a base class, is its description."""
    return TypeAdapter(answer).json_schema(schema_generator=_DescribedSchema)


class _DescribedSchema(GenerateJsonSchema):
    def model_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for base in reversed(schema["cls"].__mro__):
            if base is not BaseModel and issubclass(base, BaseModel):
                for name, text in _field_docstrings(base).items():
                    if name in found.get("properties", {}):
                        found["properties"][name]["description"] = text
        return found


def _field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    return _docstrings_of_fields(sys.modules[model.__module__]).get(model.__qualname__, {})


@cache
def _docstrings_of_fields(module: ModuleType) -> dict[str, dict[str, str]]:
    """Returns the docstrings of the fields of a module's classes: the string after each annotation."""
    return {
        node.name: {
            field.target.id: " ".join(inspect.cleandoc(text.value.value).split())
            for field, text in zip(node.body, node.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
