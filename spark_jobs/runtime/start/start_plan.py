"""The plan of a start, made before anything is written: ``spark-jobs run --dry-run`` shows it, and a start carries it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_jobs.api.continuation import StageFate
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import AppId, CheckpointId, InputName, SinkName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.runtime.stages.planned import PlannedStage
from spark_jobs.runtime.start.decision import Begin, BeginIncarnation, Continue, HomeFacts, goes_on_from
from spark_jobs.runtime.start.savepoint_start import SavepointStart
from spark_jobs.runtime.start.source_identity import SettledSources, Sources
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import PlannedTable


@dataclass(frozen=True)
class StartPlan:
    """The plan of a start."""

    decision: Continue | Begin | BeginIncarnation
    facts: HomeFacts
    """What the home says about its past."""
    stages: tuple[StageFate, ...]
    """What becomes of each stage."""
    reads: Mapping[StageName, tuple[tuple[StageName, ...], tuple[InputName, ...]]]
    """By stage the stages and the sources that it reads."""
    savepoint: SavepointStart | None
    """The savepoint that it begins with."""
    reached: Mapping[AppId, CheckpointId | None] | None
    """Where the savepoint's own line is in the tables that it shares with this start."""
    places: Mapping[SinkName, TablePlace]
    """Where the sinks' tables are."""
    tables: Mapping[SinkName, PlannedTable]
    """What becomes of each sink's table."""
    settled: SettledSources
    """What the stages read."""
    sources_before: Sources
    """What the sources were at the checkpoint that it goes on from."""
    begins_now: Mapping[StageName, Mapping[InputName, tuple[KnownSource, ...]]] = field(default_factory=dict)
    """By stage that begins now, by source: where it begins."""
    adopted: Mapping[InputName, AdoptedOffsets] = field(default_factory=dict)
    """Where old queries stopped."""
    losses: Sequence[Loss] = ()
    """What the start leaves out of sources that are read again from their beginning."""
    planned: Mapping[StageName, PlannedStage] = field(default_factory=dict)
    """The stages as they would run."""
    gone: Sequence[Loss] = ()
    """What the stages that go on would leave out of their sources; only a dry run looks for it."""

    @property
    def goes_on_from(self) -> Manifest | None:
        """The checkpoint whose state it goes on with."""
        return goes_on_from(self.decision, self.facts)
