"""The shared objects of the stages of one round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.pins import Pins
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import AttemptDocument, RoundDocument
from spark_jobs.protocol.ids import IncarnationId, InputName, PipelineName, SinkName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class RoundSite:
    """The shared objects of the stages of one round."""

    spark: SparkSession
    pipeline: PipelineName
    incarnation: IncarnationId
    attempt: AttemptDocument
    checkpoints: CheckpointStore
    """The checkpoints of the home."""
    round: RoundDocument
    rounds: Rounds
    statics: Pins
    """The pins of static inputs. They are this attempt's; inside a round whose inputs all end, each attempt takes over the first one's."""
    work: Files
    """The work directory."""
    places: Mapping[SinkName, TablePlace]
    """The places of the sinks' tables."""
    channels: str
    """The URI of the directory for rows that are not staged in a public table's directory."""
    tombstones: str
    """The URI of the directory for deleted keys of sinks with keys."""
    params: Any
    heartbeat: Heartbeat
    cancellation: Cancellation
    open_directory: Callable[[str], Files]
    """Opens a table's directory by its URI."""
    sources: Mapping[InputName, tuple[KnownSource, ...]] = field(default_factory=dict)
    """The identity of each stream of each source, and the position where reading begins."""
    replayed_statics: frozenset[InputName] = frozenset()
    """The static inputs of stages whose staged batches are computed again."""
    losses: list[Loss] = field(default_factory=list)
    """The losses of the round."""

    def losses_of(self, stage: StageName, source: InputName) -> tuple[Loss, ...]:
        """Returns the losses of a stage in a source."""
        return tuple(loss for loss in self.losses if (loss.stage, loss.input) == (stage, source))
