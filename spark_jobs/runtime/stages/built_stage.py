"""A stage with everything it needs to run, and what it knows about a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from spark_jobs.api.stage import Stage
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.ids import BatchId, InputName, LossId
from spark_jobs.protocol.losses import PassedOver
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.inputs.source_kind import SourceStream
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.stages.watermark import BEGINNING_OF_TIME_MS
from spark_jobs.runtime.tables.outlets import Outlet
from spark_jobs.runtime.tables.tables import StagingTable
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class InputWatermark:
    """The watermark that the runtime put on one input of a stage."""

    node: str
    delay_ms: int
    """The declared delay; 0 without one."""
    held: bool


@dataclass(frozen=True)
class Backfill:
    """The result of a stage for rows that it has left out."""

    rows: DataFrame
    losses: Sequence[PassedOver]

    @property
    def ids(self) -> tuple[LossId, ...]:
        return tuple(loss.id for loss in self.losses if loss.id is not None)


@dataclass(frozen=True)
class BuiltStage:
    """A stage with everything it needs to run. Made by :func:`spark_jobs.runtime.stages.build.build_stage`."""

    stage: Stage
    query_name: str
    frame: DataFrame
    checkpoint_path: str
    outlet: Outlet
    directory: Files
    """The directory that files are staged in."""
    file_prefix: str
    spark_log: SparkLog
    output: StageOutput
    upstream: Sequence[StageOutput]
    """The outputs of other stages that the stage reads."""
    bounds: Sequence[Bound]
    arguments: Sequence[str]
    """The input of each bound."""
    ended: frozenset[str]
    """The ended inputs, which are replaced by empty streams."""
    watermarks: Mapping[InputName, InputWatermark]
    has_timers: bool
    undrained: tuple[str, ...]
    """Operators whose state a drain does not empty."""
    heartbeat: Heartbeat
    cancellation: Cancellation
    gate: Gate = field(default_factory=Gate)
    """The gate that holds its batches."""
    stateful: bool = False
    """True if an operator keeps a state."""
    holds_back: bool = False
    """True if an operator keeps rows until the watermark releases them."""
    only_aggregates: bool = False
    """True if each operator with a state aggregates rows."""
    sources: Sequence[SourceStream | None] = ()
    """The streams of sources, in the order of ``bounds``; None for other stages and ended inputs."""
    lost_files: frozenset[str] | None = None
    """URLs of the Delta data files that it leaves out; None if a missing file fails the stage."""
    adopted: Sequence[AdoptedOffsets] = ()
    """The last offsets of old queries, in the order of ``bounds``; empty if the inputs are read from their beginning."""
    is_probe: bool = False
    """True if batches run only to see whether they fail. Nothing is staged."""
    backfill: Backfill | None = None
    """Rows that the next batch stages in addition to those that it reads."""

    @property
    def table(self) -> StagingTable:
        """Returns the Delta table in whose directory files are staged."""
        return self.outlet.staged_in

    @property
    def log(self) -> PrivateLog:
        return self.output.log

    @property
    def may_leave_constraints(self) -> bool:
        """Returns True if rows may be staged that violate a CHECK constraint of the sink's table.

        Their publication is blocked, and the stage goes on. Not where all inputs end: nothing is public before, so a stage that fails early
        loses nothing. A stage with ``tolerate=`` passes such rows over.
        """
        return self.outlet.public is not None and self.stage.unbounded and self.stage.tolerance is None

    @property
    def checks_constraints(self) -> bool:
        """Returns True if the next batch must fulfil the CHECK constraints that the sink's table had when the stage was built."""
        if self.outlet.public is None or not self.outlet.public.shape.has_constraints:
            return False
        staged_for = self.log.staged_for()
        return staged_for is not None and staged_for.since[-1].shape.has_constraints

    @property
    def held(self) -> bool:
        """Returns True if the watermark of an input is held."""
        return any(mark.held for mark in self.watermarks.values())

    def ends_of(self, batch: BatchId) -> list[tuple[Bound, str | None, str]]:
        """Returns each stream's end, and the lines of Spark's offset log before and after a planned batch."""
        lines = self.spark_log.offsets(batch).sources
        before = self.spark_log.offsets(BatchId(batch - 1)).sources if batch > 0 else (None,) * len(lines)
        return list(zip(self.bounds, before, lines, strict=True))

    def watermark_before(self, batch: BatchId) -> int:
        """Returns the watermark with which a planned batch begins. A held one is before all rows until it is moved."""
        watermark_ms = self.spark_log.offsets(batch).watermark_ms
        return BEGINNING_OF_TIME_MS if self.held and watermark_ms == 0 else watermark_ms

    def limited_times(self) -> frozenset[str]:
        """Returns the inputs whose event times decide which rows the stage holds back or drops as late."""
        live = {name: mark for name, mark in self.watermarks.items() if name not in self.ended}
        return frozenset(name for name, mark in live.items() if self.holds_back or (self.stateful and not mark.held))
