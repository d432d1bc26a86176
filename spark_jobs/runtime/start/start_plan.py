"""The plan of a start, made before anything is written. ``spark-jobs run --dry-run`` shows it, and a start carries it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_jobs.api.continuation import StageFate
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import AppId, CheckpointId, InputName, SinkName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.runtime.stages.planned import PlannedStage
from spark_jobs.runtime.start.decision import HomeFacts, StartDecision, goes_on_from
from spark_jobs.runtime.start.savepoint_start import SavepointStart
from spark_jobs.runtime.start.source_identity import SettledSources
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import PlannedTable


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """The plan of a start."""

    decision: StartDecision
    facts: HomeFacts
    """The past of the home."""
    stages: tuple[StageFate, ...]
    """The fate of each stage."""
    savepoint: SavepointStart | None
    """The savepoint that it begins with."""
    reached: Mapping[AppId, CheckpointId | None] | None
    """The newest public checkpoint of the savepoint's incarnation in the tables that it shares with this start, by app id."""
    places: Mapping[SinkName, TablePlace]
    """The places of the sinks' tables."""
    tables: Mapping[SinkName, PlannedTable]
    """The plan of each sink's table."""
    settled: SettledSources
    """The sources that the stages read."""
    source_tables_in_stores: frozenset[str]
    """The paths of the Delta tables in stores that the stages still read as sources."""
    begins_now: Mapping[StageName, Mapping[InputName, tuple[KnownSource, ...]]]
    """The beginning in each source for each stage that begins now."""
    adopted: Mapping[InputName, AdoptedOffsets]
    """The last offsets of old queries."""
    losses: Sequence[Loss]
    """The losses in sources that are read again from their beginning."""
    planned: Mapping[StageName, PlannedStage]
    """The stages as they would run."""
    gone: Sequence[Loss] = ()
    """The rows that continuing stages would leave out of their sources. Only a dry run looks for them."""

    @property
    def goes_on_from(self) -> Manifest | None:
        """Returns the checkpoint whose state it continues."""
        return goes_on_from(self.decision, self.facts)

    @property
    def new_places(self) -> Mapping[SinkName, TablePlace]:
        """Returns the places of the tables that are not known: see :func:`known_places`."""
        known = known_places(self.facts, self.places, self.tables)
        return {sink: place for sink, place in self.places.items() if sink not in known}


def known_places(
    facts: HomeFacts, places: Mapping[SinkName, TablePlace], tables: Mapping[SinkName, PlannedTable]
) -> Mapping[SinkName, TablePlace]:
    """Returns the places of the tables that are there, and that the home's newest checkpoint publishes into."""
    cuts = facts.head.sinks.values() if facts.head else ()
    known = {cut.table for cut in cuts} & {planned.table.uri for planned in tables.values() if planned.table}
    return {sink: place for sink, place in places.items() if place.uri in known}
