"""The bodies of the durable documents in a home. ``docs/reference/formats.md`` lists their readers and writers."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.codec import LISTING_MAX_BYTES, Document, Part
from spark_jobs.protocol.ids import (
    AppId,
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
    WorkDirectoryId,
)
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.pins import Pin
from spark_jobs.protocol.restart_settings import RestartSettings
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.protocol.states import StopState
from spark_jobs.protocol.table_shape import TableShape


class OnEnd(StrEnum):
    """The end of a round: what happens when bounded inputs have ended."""

    DRAIN = "drain"
    """Flush every stage. The pipeline is then finished."""
    SUSPEND = "suspend"
    """Flush no stage. The next run begins a new round with the same state."""


class Publish(StrEnum):
    """The time at which a complete checkpoint's rows become public."""

    FINAL = "final"
    """At the final checkpoint, with the rows of all earlier checkpoints in one Delta transaction."""
    EVERY_CHECKPOINT = "every_checkpoint"
    """At each checkpoint, in a Delta transaction of its own."""
    EXTERNAL = "external"
    """At a call of ``publish`` by the user."""


class SinkMode(StrEnum):
    """The effect of a checkpoint on a sink's table."""

    APPEND = "append"
    """Adds the rows."""
    COMPLETE = "complete"
    """Replaces the rows of the table."""
    UPSERT = "upsert"
    """Replaces the rows with the same keys."""
    INSERT = "insert"
    """Adds the rows whose keys the table does not have."""
    HISTORY = "history"
    """Takes the rows as changes. The table has every version of a key, with its validity."""

    @property
    def removes_rows(self) -> bool:
        """True if a publication may remove rows of the table."""
        return self not in (SinkMode.APPEND, SinkMode.INSERT)

    @property
    def has_keys(self) -> bool:
        """True if the rows are merged by keys."""
        return self not in (SinkMode.APPEND, SinkMode.COMPLETE)


class Publisher(StrEnum):
    """The writer of a sink's Delta transactions."""

    DELTA_RS = "delta_rs"
    """delta-rs, without a JVM."""
    SPARK = "spark"
    """Spark, for tables and modes that need it."""


class OnRewind(StrEnum):
    """The treatment of published rows of an earlier incarnation by a fresh start."""

    REFUSE = "refuse"
    KEEP = "keep"
    REPLACE = "replace"


class PipelineDocument(Document):
    """``pipeline.json``: the pipeline of a home."""

    kind = "pipeline"
    name: PipelineName
    uuid: PipelineUuid
    home: str | None = None
    """The URL of a home in a store; None for a directory. A copy of a home in a store at another URL cannot be continued."""


class RestoreFrom(Part):
    """The savepoint that a start begins with, by the URL of its directory."""

    savepoint: str
    allow_drained: bool = False
    """True if the savepoint may be taken after a drain."""
    take_pending: bool = False
    """True if staged rows of the savepoint are published first, for sinks that keep their table, before their incarnation is closed."""


class WorkDirectory(Part):
    """The directory of Spark's checkpoints and the private logs of an incarnation."""

    id: WorkDirectoryId
    path: str
    host: str


class AttemptFacts(BaseModel):
    """The driver of an attempt, and its run."""

    attempt: AttemptNumber
    run: RunId
    round: RoundNumber
    """The round that this attempt begins or continues. Its answer is this run's answer."""
    host: str
    process: int
    started_at: datetime


class AttemptDocument(AttemptFacts, Document):
    """``attempts/<n>.json``: attempt n is live and all lower ones are fenced."""

    kind = "attempt"
    request: RequestId
    highest_round: RoundNumber = RoundNumber(0)
    """The highest round that an earlier attempt names. Not every named round has begun."""
    incarnation: IncarnationId
    begun_by: RequestId | None = None
    """The request that began the incarnation; None: :attr:`request`."""
    abandons: tuple[IncarnationId, ...] = ()
    """Earlier incarnations, oldest first, that may still publish until this attempt has closed them. All others are closed."""
    on_rewind: OnRewind = OnRewind.REFUSE
    restore: RestoreFrom | None = None
    """The savepoint that the incarnation begins with if the request does not name it: a start of changed code took it itself."""
    refreshed: tuple[StageName, ...] = ()
    """The stages that have started over with the incarnation, by a full refresh. Their first publication replaces their tables' rows."""
    restored_from: CheckpointId | None
    work_directory: WorkDirectory
    state_partitions: int | None = None
    """Number of state partitions. None: as many as its incarnation began with."""
    boot: str | None = None
    """Identifies the boot of the host. After another boot the files of a work directory may be incomplete."""
    versions: dict[str, str]
    checkpointing: Checkpointing
    """The checkpoint settings of the attempt."""
    restart: RestartSettings | None = Field(default=None, discriminator="type")
    """The restart settings if the attempt fails. None: whoever started it decides."""

    @property
    def second_copy(self) -> bool:
        """True if the home always keeps its own copy of state files instead of hard links."""
        return self.checkpointing.second_copy

    def rewinds(self, parent: "Manifest | None", sink: SinkName, stage: StageName) -> bool:
        """Returns True if the first rows of a sink after ``parent`` replace all rows of its table: its stage has started over."""
        begins_line = parent is None or sink not in parent.sinks
        return (parent is None and self.on_rewind is OnRewind.REPLACE) or (begins_line and stage in self.refreshed)


class BegunAttempt(Document):
    """``attempts/<n>.begun.json``: attempt n knew every lower attempt that has begun, and there was no higher one. Its decisions hold."""

    kind = "begun_attempt"
    attempt: AttemptNumber


class RunEntry(Document):
    """``runs/<n>.<hash of the run>.json``: the start request for attempt n belongs to this run if it names the run.

    The entry is written before the request. The request may therefore not exist, or belong to another run.
    """

    kind = "run_entry"
    attempt: AttemptNumber
    run: RunId


class RoundDocument(Document):
    """``rounds/<r>.json``: round r belongs to this run id. The way it ends is fixed when it begins."""

    kind = "round"
    max_bytes = LISTING_MAX_BYTES
    round: RoundNumber
    run: RunId
    incarnation: IncarnationId
    on_end: OnEnd
    publish: Publish | None
    parameters: dict[str, Any]
    graph: dict[str, Any]
    """Stages, inputs and sinks, as declared when the round began."""
    adopted: dict[InputName, AdoptedOffsets] = Field(default_factory=dict)
    """The positions of old queries by source; only in the first round of an incarnation."""
    begins: dict[StageName, dict[StageName, BatchId]] = Field(default_factory=dict)
    """For each stage that was added later: the last batch of each producer before the batches that it reads."""
    begins_now: dict[StageName, dict[InputName, tuple[KnownSource, ...]]] = Field(default_factory=dict)
    """For each new stage that begins now: the beginning of each source, which replaces the one in :attr:`sources`."""
    sources: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """The identity of each stream of each source when the round began, and the position where reading begins."""
    new_sources: tuple[InputName, ...] = ()
    """Sources that the stages read from their beginning, although they have read them before the round."""
    taken_anew: tuple[InputName, ...] = ()
    """Sources that the run has begun to read from their beginning, and static inputs that it has begun to read at their newest version,
    in this round or those that it replaces. It does so only once."""
    losses: tuple[LossId, ...] = ()
    """Losses of earlier rounds: those of replaced rounds that the restored checkpoint contains, and those that the round was begun to
    backfill. The round leaves out the same rows."""
    undoes: tuple[LossId, ...] = ()
    """Losses of the replaced round that the restored checkpoint does not contain. Their existing rows are read again."""
    for_backfill: bool = False
    """True if the round was begun to backfill losses. If it has staged nothing, another one may begin."""
    begun_at: datetime


class PinnedInput(Document):
    """``rounds/<r>.input-<input>.json``: the end of a bounded source in round r.

    ``attempts/<n>.input-<input>.json``: the version of a static input that attempt n reads.
    """

    kind = "pinned_input"
    max_bytes = LISTING_MAX_BYTES
    input: InputName
    pins: tuple[Pin, ...]


class RecordedLoss(Document):
    """``losses/<r>-<n>.json``: a stage of round r leaves out rows of a source. Created before the first batch that does."""

    kind = "loss"
    max_bytes = LISTING_MAX_BYTES
    loss: Loss
    incarnation: IncarnationId
    round: RoundNumber
    attempt: AttemptNumber
    """The first attempt that has left the rows out."""
    work_directory: WorkDirectoryId
    """The work directory of that attempt."""
    run: RunId
    recorded_at: datetime


class AcceptedLoss(Document):
    """``losses/<r>-<n>.accepted.json``: a person has accepted that loss."""

    kind = "accepted_loss"
    loss: LossId
    reason: str
    accepted_at: datetime


class UndoneLoss(Document):
    """``losses/<r>-<n>.undone.json``: the pipeline went back to a point before that loss, and reads its input again."""

    kind = "undone_loss"
    loss: LossId
    round: RoundNumber
    """The round that reads the input again."""
    undone_at: datetime


class BackfilledLoss(Document):
    """``losses/<r>-<n>.backfilled.json``: a complete checkpoint has the rows of that loss."""

    kind = "backfilled_loss"
    loss: LossId
    run: RunId
    """The run that has processed the rows."""
    checkpoint: CheckpointId
    backfilled_at: datetime


class TidiedFiles(BaseModel):
    """The files of a source that were archived or deleted after a round."""

    tidied_at: datetime
    """The time at which they were archived or deleted."""
    left: tuple[str, ...] = ()
    """Files that stay because they have changed since they were read."""


class TidiedInput(TidiedFiles, Document):
    """``rounds/<r>.tidied-<input>.json``: the files of a source that round r has read are archived or deleted."""

    kind = "tidied_input"
    max_bytes = LISTING_MAX_BYTES
    round: RoundNumber
    input: InputName


class CheckpointKind(StrEnum):
    """The reason for a checkpoint."""

    PERIODIC = "periodic"
    """The interval had passed."""
    SAVEPOINT = "savepoint"
    """A user requested a savepoint."""
    STOP = "stop"
    """The pipeline was stopped and can be resumed."""
    FINAL = "final"
    """All bounded inputs of the round have ended and every stage is at its end."""


class ActionsFile(Part):
    """A file of Delta actions, one JSON line each: the actions that ``writeFiles`` returned, with their batch."""

    path: str
    sha256: str
    files: int
    rows: int
    size_bytes: int


def is_published_by_round(publish: Publish, graph: Mapping[str, Any]) -> bool:
    """Returns True if a sink's rows become public only with the last checkpoint of a round.

    For such a sink each checkpoint carries the rows of the earlier checkpoints of the round.

    Args:
        publish: The policy of the sink.
        graph: The description of the pipeline.
    """
    sources = graph.get("sources", {}).values()
    return publish is Publish.FINAL or (
        publish is Publish.EXTERNAL and bool(sources) and all(each.get("bounded") for each in sources)
    )


class CarriedActions(Part):
    """Files of actions of earlier checkpoints, whose manifests may be discarded."""

    first: CheckpointId
    last: CheckpointId
    batch: BatchId
    """The last batch of the stage at the cut of ``last``."""
    round: RoundNumber | None = None
    """The round of those checkpoints. None: they come from a savepoint."""
    actions: ActionsFile
    replace: bool
    """True if the rows of the table are removed before these are added."""
    staged_for: tuple[TableShape, ...] = ()
    """The shape of the table when they were staged. A sink cut has that of all its rows once."""


class HoldLimits(Part):
    """The limits within which other tables are published without a table that refuses its rows."""

    time_ms: int
    """Time since the first checkpoint was complete that the table should have but does not have yet."""
    size_bytes: int | None
    """Number of bytes that may wait for the table. None: any number."""


class SinkCut(Part):
    """The rows that a checkpoint adds to a sink."""

    stage: StageName
    mode: SinkMode = SinkMode.APPEND
    publisher: Publisher = Publisher.DELTA_RS
    table: str
    """URI of the Delta table."""
    table_id: str
    staged_for: tuple[TableShape, ...]
    """The shapes of the table when the rows of this cut were staged, oldest first."""
    partition_by: tuple[str, ...]
    app: AppId
    actions: ActionsFile
    publish: Publish
    known_published: CheckpointId | None
    """The newest checkpoint known to be public when this one was taken. The table will always have at least that one."""
    replace: bool = False
    """True if its publication replaces all rows of the table.

    This holds for :attr:`SinkMode.COMPLETE`, and for the first publication of an incarnation that began with ``--on-rewind replace`` or
    with a full refresh of the table.
    """
    replaces_own: bool = False
    """True if its publication must not replace rows of others.

    This holds for an incarnation that began with ``--on-rewind replace``, or with a full refresh of the table, until one of its checkpoints
    is public.
    """
    merge: MergeCut | None = None
    """The merge of modes with keys: :attr:`SinkMode.UPSERT`, :attr:`SinkMode.INSERT`, :attr:`SinkMode.HISTORY`."""
    hold: HoldLimits | None = None
    """If the table refuses its rows, the others are published without it, up to these limits. None: all wait."""
    carried: tuple[CarriedActions, ...] = ()
    """If rows become public by round: the unpublished rows of earlier checkpoints, oldest first."""
    named_before: tuple[CarriedActions, ...] = ()
    """All other rows of earlier checkpoints whose batches the stage's private log still had at the cut, oldest first.

    They may be public, so a sweep of staged files keeps them.
    """


class Origin(Part):
    """The savepoint that an incarnation began with."""

    savepoint: str
    """URL of the savepoint's directory at that time."""
    pipeline: PipelineUuid
    incarnation: IncarnationId
    checkpoint: CheckpointId
    """Number of the checkpoint in the home of the savepoint."""


class Manifest(Document):
    """``manifests/<k>.json``: checkpoint k is complete. It is written last. Everything that it names is durable."""

    kind = "manifest"
    format_version = 2
    """Since version 2 a state file may be in a bundle."""
    max_bytes = LISTING_MAX_BYTES
    checkpoint: CheckpointId
    parent: CheckpointId | None
    checkpoint_kind: CheckpointKind
    on_end: OnEnd
    pipeline: PipelineUuid
    pipeline_name: PipelineName
    incarnation: IncarnationId
    round: RoundNumber
    run: RunId
    attempt: AttemptNumber
    work_directory: WorkDirectoryId
    request: RequestId | None
    aligned: bool = True
    """True if stages with unbounded inputs had read everything that such stages before them had staged. Failing stages do not count."""
    behind: tuple[StageName, ...] = ()
    """The stages that lack rows of it, because they were failing or had unread rows in flight, and all stages downstream of them.

    The tables of all others show the same prefix of each source that only one stage reads.
    """
    held: tuple[SinkName, ...] = ()
    """The sinks without which the others were being published when this checkpoint began, because their tables refused rows."""
    began_at: datetime
    completed_at: datetime
    graph: dict[str, Any]
    """Stages, inputs and sinks as declared. The next start compares its own with them."""
    parameters: dict[str, Any]
    settings: dict[str, str]
    """Spark settings that a restart must repeat."""
    spark: str
    """The minor version of the Spark that has written the state, such as ``4.2``. An older Spark cannot continue the checkpoint."""
    inputs: dict[InputName, tuple[Pin, ...]]
    sources: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """The identity of each stream of each source that the stages have read, and the position where reading has begun."""
    losses: tuple[Loss, ...] = ()
    """Rows that the stages have left out in this round because they are lost. Those in :attr:`backfilled` are not among them."""
    backfilled: tuple[LossId, ...] = ()
    """Losses of this round, and of rounds that it replaces, whose rows the stages have processed since."""
    stages: dict[StageName, StageCut]
    sinks: dict[SinkName, SinkCut]
    drained: bool
    origin: Origin | None = None
    """Set in the first checkpoint of an incarnation that began with a savepoint. It adds nothing to any sink."""
    brought: dict[SinkName, tuple[CarriedActions, ...]] = Field(default_factory=dict)
    """With ``origin``: the staged rows of an unfinished round in the savepoint. The next checkpoint carries them."""

    @property
    def written_version(self) -> int:
        return 2 if any(file.offset is not None for cut in self.stages.values() for file in cut.files) else 1

    @property
    def ends_round(self) -> bool:
        """True if this is the last checkpoint of its round, at its end or by a drain. Sinks with :attr:`Publish.FINAL` are published."""
        return self.drained or self.checkpoint_kind is CheckpointKind.FINAL

    def is_published_by_round(self, sink: SinkName) -> bool:
        """Returns True if the rows of a sink become public only with the last checkpoint of a round; False for an unknown sink."""
        return sink in self.sinks and is_published_by_round(self.sinks[sink].publish, self.graph)

    @property
    def sinks_behind(self) -> tuple[SinkName, ...]:
        """The sinks of stages in :attr:`behind`, without those whose rows become public only with a later checkpoint."""
        public = (sink for sink in self.sinks if self.ends_round or not self.is_published_by_round(sink))
        return tuple(sorted(sink for sink in public if self.sinks[sink].stage in self.behind))

    @property
    def may_end_blocked(self) -> bool:
        """True if an attempt may end with this checkpoint while its publication is blocked: a stop, after which a start goes on.

        A finished run must have published its rows, and after a drain nothing else would publish them.
        """
        return self.checkpoint_kind is CheckpointKind.STOP and not self.drained

    @property
    def ends_attempt(self) -> bool:
        """True if the attempt ends with this checkpoint."""
        return self.checkpoint_kind in (CheckpointKind.FINAL, CheckpointKind.STOP)


class ErrorReport(Part):
    """An error that crossed a process."""

    error: str
    retry: str
    failed: str
    exists: str = ""
    safe: str = ""
    remedy: str = ""
    evidence: dict[str, Any] = Field(default_factory=dict)


class SinkResult(Part):
    """The result of a run in a sink. ``version`` is None while its rows are only staged."""

    table: str
    checkpoint: CheckpointId
    version: int | None
    rows: int


class BlockedPublication(Part):
    """A publication that failed and is tried again. Meanwhile the stages run on, and checkpoints are taken."""

    checkpoint: CheckpointId
    """The first checkpoint that was not published, also by an earlier attempt."""
    since: datetime
    """The time at which that checkpoint was complete."""
    tries: int
    """Number of failed tries of this attempt."""
    waiting: tuple[SinkName, ...]
    """The sinks whose tables lack the newest checkpoint."""
    error: ErrorReport
    """The error of the last try."""
    rows_kept_until: datetime | None = None
    """The time from which a VACUUM may delete the oldest waiting rows. None: not known, or never."""
    all_wait_from: datetime | None = None
    """The time from which all tables wait.

    Until then, and while no more rows wait than the holds allow, the other tables are published. None: all tables wait already.
    """

    @property
    def held(self) -> tuple[SinkName, ...]:
        """The sinks that wait while the others are published."""
        return () if self.all_wait_from is None else self.waiting

    @property
    def summary(self) -> str:
        """One line that is the same in every try: the error, its time, the waiting tables and the remedy."""
        sink = self.error.evidence.get("sink")
        refusing = f" by sink {sink}" if sink else ""
        waiting = f" Waiting: {', '.join(self.waiting)}." if self.waiting else ""
        if self.all_wait_from is not None:
            waiting += f" The other tables go on, at most until {self.all_wait_from:%Y-%m-%d %H:%M:%SZ}."
        return (
            f"Publication is blocked{refusing} since {self.since:%Y-%m-%d %H:%M:%SZ}, from checkpoint {self.checkpoint} on: "
            f"{self.error.error}: {self.error.failed}{waiting} {self.error.remedy}"
        )


class StartResponse(Document):
    """``responses/start-<n>.json``: the end of attempt n. Once written, it never changes."""

    kind = "start_response"
    request: RequestId
    attempt: AttemptNumber
    run: RunId
    checkpoint: CheckpointId | None
    """The checkpoint with which the run has ended, if any. With an error only if its rows can never become public."""
    ends_round: bool = False
    """:attr:`Manifest.ends_round` of that checkpoint, which may be discarded since."""
    sinks: dict[SinkName, SinkResult]
    blocked: BlockedPublication | None = None
    """The publication that was blocked when the run ended. The next start tries it again. None: every due publication is done."""
    error: ErrorReport | None = None
    answered_at: datetime


class StageState(StrEnum):
    """The state of a stage in its round."""

    WAITING = "waiting"
    """An input has not ended."""
    RUNNING = "running"
    QUIESCED = "quiesced"
    """The stage has read and staged all its rows, because the pipeline is being stopped."""
    RESTARTING = "restarting"
    """The query of the stage has failed and will be started again."""
    FAILED = "failed"
    """The stage has failed permanently. The other stages run on without it until the next start."""
    DRAINING = "draining"
    """The watermark is being advanced to the end of time."""
    ENDED = "ended"
    """All of the round's rows are staged."""


class InputLag(Part):
    """The amount of an input that a stage has not read. None: its source does not report it."""

    rows: int | None = None
    size_bytes: int | None = None
    versions: int | None = None
    """Versions of a Delta table."""
    files: int | None = None

    @property
    def is_behind(self) -> bool:
        """True if something is known not to be read."""
        return any((self.rows, self.size_bytes, self.versions, self.files))


class ToleratedRows(Part):
    """The number of rows that a stage may lose in a time."""

    rows: int
    interval_ms: int


class StageStatus(Part):
    """The visible state of a stage. It is a hint; nothing is decided by it."""

    state: StageState
    batch: BatchId | None = None
    rows_in: int = 0
    rows_per_s: float = 0.0
    busy: float | None = None
    """The share of time, from 0 to 1, in which the stage worked up to its newest batch. A stage that is always busy is too slow."""
    watermark_ms: int | None = None
    late_rows: int = 0
    violations: dict[str, int] = Field(default_factory=dict)
    """Rows of this attempt that violate an expectation, by expectation, if the stage drops or diverts such rows."""
    progress: float | None = None
    """A number from 0 to 1 if the amount of input is known."""
    lag: dict[str, InputLag] = Field(default_factory=dict)
    """The lag by input, while the stage runs."""
    restarts: int = 0
    """Number of restarts of the stage in this attempt."""
    reason: str | None = None
    """The reason for its restart or its permanent failure."""
    tolerates: ToleratedRows | None = None
    """The budget of a stage with a tolerance. The loss ledger has the rows that it has used up."""


class RunState(StrEnum):
    """The state of an attempt."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """A stop was requested."""
    COMPLETING = "completing"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"


class StopStatus(Part):
    """The progress of a stop."""

    request: RequestId
    state: StopState
    drain: bool


class Status(Document):
    """``status.json``: the latest heartbeat of the live attempt. It is overwritten, and only a hint."""

    kind = "status"
    attempt: AttemptNumber
    run: RunId
    state: RunState
    updated_at: datetime
    stages: dict[StageName, StageStatus] = Field(default_factory=dict)
    checkpoint: CheckpointId | None = None
    completed_checkpoints: int = 0
    """Number of checkpoints that this attempt has completed."""
    failed_checkpoints: int = 0
    """Number of failed tries at a checkpoint in this attempt."""
    spark_ui: str | None = None
    stop: StopStatus | None = None
    """The progress of the newest stop of this attempt."""
    blocked: BlockedPublication | None = None
    """The blocked publication; None if none is blocked."""
