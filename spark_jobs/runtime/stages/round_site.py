"""Everything that the stages of one round share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.control.pins import Pins
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import RoundDocument
from spark_jobs.protocol.ids import IncarnationId, InputName, PipelineName, SinkName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class RoundSite:
    """Everything that the stages of one round share."""

    spark: SparkSession
    pipeline: PipelineName
    incarnation: IncarnationId
    round: RoundDocument
    rounds: Rounds
    statics: Pins
    """Which versions of static inputs are read: in this round or, beside an unbounded input, in this attempt."""
    work: Files
    """The work directory."""
    places: Mapping[SinkName, TablePlace]
    """Where the sinks' tables are."""
    channels: str
    """The URI of the directory where rows are staged that do not go into a public table's directory."""
    tombstones: str
    """The URI of the directory where the deleted keys of sinks with keys are remembered."""
    params: Any
    heartbeat: Heartbeat
    cancellation: Cancellation
    open_directory: Callable[[str], Files]
    """Opens a table's directory by its URI."""
    sources: Mapping[InputName, tuple[KnownSource, ...]] = field(default_factory=dict)
    """What each stream of each source is, and where reading it begins."""
    losses: list[Loss] = field(default_factory=list)
    """What the round leaves out, because it is gone for good."""

    def losses_of(self, stage: StageName, source: InputName) -> tuple[Loss, ...]:
        """Returns what a stage leaves out of a source."""
        return tuple(loss for loss in self.losses if (loss.stage, loss.input) == (stage, source))
