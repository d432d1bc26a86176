"""The bodies of the durable documents in a home. ``docs/reference/formats.md`` says who may write and read what."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.checkpointing import Checkpointing, CheckpointOverrides
from spark_jobs.protocol.codec import LISTING_MAX_BYTES, Document, Part
from spark_jobs.protocol.ids import (
    AppId,
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
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
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.protocol.states import StopState
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.protocol.workspace import NamedWorkspace


class OnEnd(StrEnum):
    """What happens when bounded inputs have ended."""

    DRAIN = "drain"
    """Everything is flushed, the pipeline is finished."""
    SUSPEND = "suspend"
    """Nothing is flushed, the next run begins a new round with the state intact."""


class Publish(StrEnum):
    """When a complete checkpoint's rows become public."""

    FINAL = "final"
    """Only from a final checkpoint, all pending increments in one Delta transaction."""
    EVERY_CHECKPOINT = "every_checkpoint"
    """Each checkpoint in a Delta transaction of its own."""
    EXTERNAL = "external"
    """Somebody else calls ``publish``."""


class SinkMode(StrEnum):
    """What a checkpoint does to a sink's table."""

    APPEND = "append"
    """Its rows are added."""
    COMPLETE = "complete"
    """Its rows replace those of the table."""
    UPSERT = "upsert"
    """Its rows replace those with the same keys."""
    INSERT = "insert"
    """Its rows are added where the table has no row with the same keys."""
    HISTORY = "history"
    """Its rows are changes; the table has every version of a key, and from when to when it was valid."""

    @property
    def removes_rows(self) -> bool:
        """Whether a publication may remove rows that the table has."""
        return self not in (SinkMode.APPEND, SinkMode.INSERT)


class Publisher(StrEnum):
    """Who makes the Delta transactions of a sink."""

    DELTA_RS = "delta_rs"
    """delta-rs, without a JVM."""
    SPARK = "spark"
    """Spark, because the table or the mode needs it."""


class OnRewind(StrEnum):
    """What a fresh start does with rows that an earlier incarnation has published."""

    REFUSE = "refuse"
    KEEP = "keep"
    REPLACE = "replace"


class PipelineDocument(Document):
    """``pipeline.json``: whose home this is, and its workspace where it is no directory."""

    kind = "pipeline"
    name: PipelineName
    uuid: PipelineUuid
    workspace: NamedWorkspace | None = None


class RestoreFrom(Part):
    """The savepoint that a start begins with, by the URL of its directory."""

    savepoint: str
    allow_drained: bool = False
    """Whether it may be one that was taken after a drain."""
    take_pending: bool = False
    """Whether rows that it holds staged, for sinks that keep their table, are published before their incarnation is closed."""


class StartRequest(Document):
    """``requests/start-<n>.json``: somebody wants attempt n. Written by whoever asks, before a driver starts."""

    kind = "start_request"
    request: RequestId
    attempt: AttemptNumber
    run: RunId
    requested_at: datetime
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Without secrets: those come from the driver's environment."""
    on_end: OnEnd | None = None
    publish: Publish | None = None
    fresh: bool = False
    on_rewind: OnRewind = OnRewind.REFUSE
    adopt_offsets: dict[InputName, str] = Field(default_factory=dict)
    """By source the checkpoint directory of the Spark query that it goes on after."""
    allow_dropped: bool = False
    """Whether the state of stages that the pipeline no longer has may be left behind."""
    new_sources: tuple[InputName, ...] = ()
    """Sources that are read from their beginning, once in the run. They may be other ones than before; the state of the stages stays."""
    accept_data_loss: tuple[InputName, ...] = ()
    """Sources that are read without what is gone of them."""
    checkpoint: CheckpointOverrides | None = None
    """Instead of some of the pipeline's checkpoint settings, for the attempt that this starts."""
    restore: RestoreFrom | None = None
    """What a new incarnation begins with."""
    state_partitions: int | None = None
    """In how many partitions the state is from this start on; None: in as many as before."""
    restarts: RestartHistory | None = None
    """What the pipeline's restart strategy remembers, where it has decided on this start; None: somebody asked, and it counts anew."""


class WorkDirectory(Part):
    """Where Spark's own checkpoints and the private logs of an incarnation are."""

    id: WorkDirectoryId
    path: str
    host: str


class AttemptDocument(Document):
    """``attempts/<n>.json``: attempt n is live and all lower ones are fenced."""

    kind = "attempt"
    attempt: AttemptNumber
    request: RequestId
    run: RunId
    round: RoundNumber
    """The round that this attempt begins or continues: its answer is this run's answer."""
    highest_round: RoundNumber = RoundNumber(0)
    """The highest round that an attempt before this one names. Not every round that is named has begun."""
    incarnation: IncarnationId
    begun_by: RequestId | None = None
    """The request that began the incarnation; None: :attr:`request`."""
    abandons: tuple[IncarnationId, ...] = ()
    """Earlier incarnations, oldest first, that may still publish until this attempt has closed them. One that is not named is closed."""
    on_rewind: OnRewind = OnRewind.REFUSE
    restore: RestoreFrom | None = None
    """The savepoint that the incarnation begins with, where not the request names it: a start of changed code has taken it itself."""
    restored_from: CheckpointId | None
    work_directory: WorkDirectory
    state_partitions: int | None = None
    """In how many partitions its state is; None: as many as its incarnation began with."""
    host: str
    boot: str | None = None
    """Names the time since the host was started: after another start the files of a work directory may not be whole."""
    process: int
    started_at: datetime
    versions: dict[str, str]
    checkpointing: Checkpointing
    """When it takes checkpoints while its stages run."""
    restart: RestartSettings | None = Field(default=None, discriminator="type")
    """Whether and when another attempt follows if it fails; None: whoever has started it decides."""

    @property
    def second_copy(self) -> bool:
        """Whether the home has the bytes of state a second time, also where it could give the work directory's files a second name."""
        return self.checkpointing.second_copy


class RoundDocument(Document):
    """``rounds/<r>.json``: round r belongs to this run id; how it ends is fixed when it begins."""

    kind = "round"
    max_bytes = LISTING_MAX_BYTES
    round: RoundNumber
    run: RunId
    incarnation: IncarnationId
    on_end: OnEnd
    publish: Publish | None
    parameters: dict[str, Any]
    graph: dict[str, Any]
    """Stages, inputs and sinks as declared when the round began."""
    adopted: dict[InputName, AdoptedOffsets] = Field(default_factory=dict)
    """By source where an old query stopped; only in the first round of an incarnation."""
    begins: dict[StageName, dict[StageName, BatchId]] = Field(default_factory=dict)
    """By stage that was not there from the beginning, by producer: the last batch before those that it reads."""
    begins_now: dict[StageName, dict[InputName, tuple[KnownSource, ...]]] = Field(default_factory=dict)
    """By stage that is new and begins now, by source: where it begins, instead of where :attr:`sources` say."""
    sources: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """What each stream of each source was when the round began, and where reading it begins."""
    new_sources: tuple[InputName, ...] = ()
    """Sources that the stages read from their beginning, although they have read of them before the round."""
    taken_anew: tuple[InputName, ...] = ()
    """Sources that the run has begun to read from their beginning, in this round or in those that it replaces: it does so once."""
    begun_at: datetime


class PinnedInput(Document):
    """``rounds/<r>.input-<input>.json``: where a bounded source ends in round r.

    ``attempts/<n>.input-<input>.json``: which version of a static input attempt n reads.
    """

    kind = "pinned_input"
    max_bytes = LISTING_MAX_BYTES
    input: InputName
    pins: tuple[Pin, ...]


class AcceptedLoss(Document):
    """``rounds/<r>.loss-<n>.json``: what the stages of round r leave out, because it is gone for good."""

    kind = "accepted_loss"
    max_bytes = LISTING_MAX_BYTES
    round: RoundNumber
    attempt: AttemptNumber
    """The attempt that was started with the acceptance."""
    run: RunId
    accepted_at: datetime
    losses: tuple[Loss, ...]


class TidiedInput(Document):
    """``rounds/<r>.tidied-<input>.json``: the files of a source that round r has read are archived or deleted."""

    kind = "tidied_input"
    max_bytes = LISTING_MAX_BYTES
    round: RoundNumber
    input: InputName
    tidied_at: datetime
    left: tuple[str, ...] = ()
    """Files that have changed since they were read, and stay."""


class CheckpointKind(StrEnum):
    """Why a checkpoint was taken."""

    PERIODIC = "periodic"
    """The interval was over."""
    SAVEPOINT = "savepoint"
    """A user asked for one of their own."""
    STOP = "stop"
    """The pipeline was stopped, to be resumed."""
    FINAL = "final"
    """All bounded inputs of the round have ended and every stage is at its end."""


class ActionsFile(Part):
    """A file of Delta actions, one JSON line each, as ``writeFiles`` returned them plus the batch they belong to."""

    path: str
    sha256: str
    files: int
    rows: int
    size_bytes: int


def is_published_by_round(publish: Publish, graph: Mapping[str, Any]) -> bool:
    """Returns whether a sink's rows become public only with the last checkpoint of a round.

    For such a sink each checkpoint carries what the earlier checkpoints of the round have added.

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
    """Where the stage was cut at ``last``."""
    round: RoundNumber | None = None
    """The round of those checkpoints; None: a savepoint has brought them."""
    actions: ActionsFile
    replace: bool
    """Whether the rows that the table has go before these are added."""
    staged_for: tuple[TableShape, ...] = ()
    """What the table was when they were staged; in a sink cut that of all its rows is there once."""


class HoldLimits(Part):
    """How long the other tables are published without one that refuses its rows."""

    time_ms: int
    """Since the first checkpoint that is due in the table and not public there was complete."""
    size_bytes: int | None
    """So much may wait for the table; None: any amount."""


class SinkCut(Part):
    """What a checkpoint adds to a sink."""

    stage: StageName
    mode: SinkMode = SinkMode.APPEND
    publisher: Publisher = Publisher.DELTA_RS
    table: str
    """URI of the Delta table."""
    table_id: str
    staged_for: tuple[TableShape, ...]
    """What the table was when the rows that this cut names were staged, oldest first."""
    partition_by: tuple[str, ...]
    app: AppId
    actions: ActionsFile
    publish: Publish
    known_published: CheckpointId | None
    """The newest checkpoint that was known to be public when this one was made: the table has at least that one for ever."""
    replace: bool = False
    """Whether its publication replaces the rows that the table has: with :attr:`SinkMode.COMPLETE`, and the first one of an incarnation
    begun with ``--on-rewind replace``."""
    replaces_own: bool = False
    """Whether its publication must not replace rows of others. True in an incarnation begun with ``--on-rewind replace``, as long as
    nothing of the incarnation is public."""
    merge: MergeCut | None = None
    """For the modes with keys: :attr:`SinkMode.UPSERT`, :attr:`SinkMode.INSERT`, :attr:`SinkMode.HISTORY`."""
    hold: HoldLimits | None = None
    """If the table refuses its rows, the others are published without it, up to these limits. None: they wait with it."""
    carried: tuple[CarriedActions, ...] = ()
    """Where rows become public by round: what the checkpoints before this one have added and is not public, oldest first."""
    named_before: tuple[CarriedActions, ...] = ()
    """What the checkpoints before this one have added besides, oldest first, of batches that the stage's private log had not forgotten at
    the cut. Whoever deletes staged files leaves these: they may be public."""


class Origin(Part):
    """The savepoint that an incarnation began with."""

    savepoint: str
    """URL of the directory that it was in then."""
    pipeline: PipelineUuid
    incarnation: IncarnationId
    checkpoint: CheckpointId
    """Its number in the home that it was taken in."""


class Manifest(Document):
    """``manifests/<k>.json``: checkpoint k is complete. Written last; all that it names is durable."""

    kind = "manifest"
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
    """Whether stages with unbounded inputs had read what such stages before them had staged, but for failing ones."""
    behind: tuple[StageName, ...] = ()
    """The stages that lack something of it, and those that they feed: they were failing, or rows were in flight before them.

    The tables of all others show the same prefix of each source that one stage reads."""
    held: tuple[SinkName, ...] = ()
    """The sinks with a hold whose tables lacked a checkpoint that another table had, when this one was cut."""
    began_at: datetime
    completed_at: datetime
    graph: dict[str, Any]
    """Stages, inputs and sinks as declared; compared at the next start."""
    parameters: dict[str, Any]
    settings: dict[str, str]
    """Spark settings that a restart must repeat."""
    inputs: dict[InputName, tuple[Pin, ...]]
    sources: dict[InputName, tuple[KnownSource, ...]] = Field(default_factory=dict)
    """What each stream of each source is that the stages have read, and where reading it has begun."""
    losses: tuple[Loss, ...] = ()
    """What the stages have left out in this round, because it is gone for good."""
    stages: dict[StageName, StageCut]
    sinks: dict[SinkName, SinkCut]
    drained: bool
    origin: Origin | None = None
    """For the first checkpoint of an incarnation that began with a savepoint: it adds nothing to any sink."""
    brought: dict[SinkName, tuple[CarriedActions, ...]] = Field(default_factory=dict)
    """Beside ``origin``: the rows of an unfinished round that the savepoint held staged. The next checkpoint carries them."""

    @property
    def ends_round(self) -> bool:
        """Whether this is the last checkpoint of its round, at its end or by a drain: sinks with :attr:`Publish.FINAL` are published."""
        return self.drained or self.checkpoint_kind is CheckpointKind.FINAL

    def is_published_by_round(self, sink: SinkName) -> bool:
        """Returns whether the rows of a sink become public only with the last checkpoint of a round; False if it has no such sink."""
        return sink in self.sinks and is_published_by_round(self.sinks[sink].publish, self.graph)

    @property
    def sinks_behind(self) -> tuple[SinkName, ...]:
        """The sinks of stages that are :attr:`behind`, but for those whose rows become public only with a later checkpoint."""
        public = (sink for sink in self.sinks if self.ends_round or not self.is_published_by_round(sink))
        return tuple(sorted(sink for sink in public if self.sinks[sink].stage in self.behind))

    @property
    def may_end_blocked(self) -> bool:
        """Whether an attempt may end with this checkpoint while its publication is blocked: that of a stop, after which a start goes on.

        A run that has come to its end has published its rows, and nothing follows a drain that would.
        """
        return self.checkpoint_kind is CheckpointKind.STOP and not self.drained

    @property
    def ends_attempt(self) -> bool:
        """Whether the attempt ends with this checkpoint."""
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
    """What a run left in a sink. ``version`` is None while its rows are staged only."""

    table: str
    checkpoint: CheckpointId
    version: int | None
    rows: int


class BlockedPublication(Part):
    """A publication that did not get through, and is tried again; the stages run on, and checkpoints are taken."""

    checkpoint: CheckpointId
    """The first checkpoint that was not published."""
    since: datetime
    tries: int
    """That have failed since then."""
    waiting: tuple[SinkName, ...]
    """The sinks whose tables lack the newest checkpoint."""
    error: ErrorReport
    """What the last try has failed with."""
    rows_kept_until: datetime | None = None
    """From then on a VACUUM may delete the oldest rows that wait; None: not known, or never."""
    all_wait_from: datetime | None = None
    """From then on all tables wait; until then, and while no more than their holds allow is waiting, the others are published without
    those that wait. None: they wait already."""

    @property
    def held(self) -> tuple[SinkName, ...]:
        """The sinks that wait while the others are published."""
        return () if self.all_wait_from is None else self.waiting

    @property
    def summary(self) -> str:
        """One line that is the same from try to try: what failed, since when, which tables wait, what to do."""
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
    """``responses/start-<n>.json``: how attempt n ended. Once written it is the answer for ever."""

    kind = "start_response"
    request: RequestId
    attempt: AttemptNumber
    run: RunId
    checkpoint: CheckpointId | None
    """The checkpoint that the run has ended with, if there is one. With an error only where its rows can never become public any more."""
    ends_round: bool = False
    """As :attr:`Manifest.ends_round` of that checkpoint, which may be discarded by now."""
    sinks: dict[SinkName, SinkResult]
    blocked: BlockedPublication | None = None
    """The publication that was blocked when the run ended; None: everything that is due is public. The next start tries it again."""
    error: ErrorReport | None = None
    answered_at: datetime


class StageState(StrEnum):
    """Where a stage is in its round."""

    WAITING = "waiting"
    """An input has not ended."""
    RUNNING = "running"
    QUIESCED = "quiesced"
    """It has read and passed on all that it will, because the pipeline is being stopped."""
    RESTARTING = "restarting"
    """Its query failed and starts again after a while."""
    FAILED = "failed"
    """It has failed for good. The other stages run on without it, until the next start."""
    DRAINING = "draining"
    """The watermark is being moved to its end."""
    ENDED = "ended"
    """All of the round's rows are staged."""


class InputLag(Part):
    """What an input has that a stage has not read. None: its source does not tell."""

    rows: int | None = None
    size_bytes: int | None = None


class StageStatus(Part):
    """What people see of a stage. A hint, never a decision."""

    state: StageState
    batch: BatchId | None = None
    rows_in: int = 0
    rows_per_s: float = 0.0
    watermark_ms: int | None = None
    late_rows: int = 0
    violations: dict[str, int] = Field(default_factory=dict)
    """By expectation the rows of this attempt that violate it, where the stage drops or diverts such rows."""
    progress: float | None = None
    """Between 0 and 1, where the amount of input is known."""
    lag: dict[str, InputLag] = Field(default_factory=dict)
    """By input, while the stage runs."""
    restarts: int = 0
    """How often this attempt has started it again after a failure."""
    reason: str | None = None
    """Why it starts again, while it does, or why it has failed."""


class RunState(StrEnum):
    """Where an attempt is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """Somebody has asked for its stop."""
    COMPLETING = "completing"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"


class StopStatus(Part):
    """How far a stop is."""

    request: RequestId
    state: StopState
    drain: bool


class Status(Document):
    """``status.json``: the latest heartbeat of the live attempt. Overwritten; a hint."""

    kind = "status"
    attempt: AttemptNumber
    run: RunId
    state: RunState
    updated_at: datetime
    stages: dict[StageName, StageStatus] = Field(default_factory=dict)
    checkpoint: CheckpointId | None = None
    spark_ui: str | None = None
    stop: StopStatus | None = None
    """Of the newest stop that this attempt was asked for."""
    blocked: BlockedPublication | None = None
    """The publication that does not get through; None: none is blocked."""
