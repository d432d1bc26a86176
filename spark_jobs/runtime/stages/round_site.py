"""Everything that the stages of one round share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.control.pins import Pins
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.ids import BatchId, IncarnationId, InputName, PipelineName, RoundNumber, SinkName, StageName
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
    round: RoundNumber
    rounds: Rounds
    statics: Pins
    """Which versions of static inputs are read: in this round or, beside an unbounded input, in this attempt."""
    work: Files
    """The work directory."""
    places: Mapping[SinkName, TablePlace]
    """Where the sinks' tables are."""
    channels: Path
    """Where rows are staged that do not go into a public table's directory."""
    tombstones: Path
    """Where the deleted keys of upsert sinks are remembered."""
    params: Any
    heartbeat: Heartbeat
    cancellation: Cancellation
    open_directory: Callable[[str], Files]
    adopted: Mapping[InputName, AdoptedOffsets] = field(default_factory=dict)
    begins: Mapping[StageName, Mapping[StageName, BatchId]] = field(default_factory=dict)
    """By stage that was not there from the beginning, by producer: the last batch before those that it reads."""
