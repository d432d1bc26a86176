"""Where a stage's rows go: the directory they are staged in, the public table they are for, and who will publish them."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.sink import MergeRule, Sink
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.table_shape import StagedFor, StagedSince, TableShape
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.tables.channels import event_channel, own_design
from spark_jobs.runtime.tables.merge_rules import check_rule, check_versions, with_versions
from spark_jobs.runtime.tables.schemas import as_held, fit
from spark_jobs.runtime.tables.stores import refuse_spark
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import PlannedTable, StagingTable, apply_plan, plan_table, prepare_table
from spark_jobs.runtime.tables.tombstones import prepare_tombstones

_MEANING = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""The settings that decide what ``apply_as_deletes`` and a table's generated columns and constraints come to."""
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicTable:
    """The table of a stage's sink as it is before the round's first batch."""

    uri: str
    partition_by: tuple[str, ...]
    publisher: Publisher
    table_id: str
    shape: TableShape
    """What publication compares the table with, when it is time."""

    @property
    def staged_for(self) -> StagedFor:
        """What a private log begins with."""
        return StagedFor(table_id=self.table_id, since=(StagedSince(first=BatchId(0), shape=self.shape),))


@dataclass(frozen=True)
class Outlet:
    """Where a stage's rows go."""

    staged_in: StagingTable
    """The public table; or a channel, where nothing is public or rows are merged first."""
    public: PublicTable | None
    merge: MergeCut | None
    frame: DataFrame
    """What is staged."""

    @property
    def is_own(self) -> bool:
        """Whether rows are staged in a directory where nothing ever is public."""
        return self.public is None or self.merge is not None


def prepare_outlet(
    stage: Stage, session: SparkSession, frame: DataFrame, place: TablePlace | None, channel: str, tombstones: str
) -> Outlet:
    """Makes and checks the tables of a stage; idempotent.

    Args:
        stage: The stage.
        session: Its session.
        frame: Its result.
        place: Where the sink's table is; None without a sink.
        channel: The URI of the table where rows are staged that do not go into the public table's directory.
        tombstones: The URI of the table where the deleted keys of a sink with keys are remembered.

    Raises:
        UnsupportedTableError: The rows do not fit the sink's table, or nobody could publish into it.
        InvalidPipelineError: The merge rule does not fit what the stage returns.
    """
    sink = stage.sink
    if sink is None or place is None:
        return Outlet(prepare_table(session, TablePlace(channel), frame, own_design(frame), stage.name), None, None, frame)
    rule = sink.merge
    planned = plan_outlet(sink, session, frame, place)
    table = apply_plan(planned, session, place, with_versions(frame, rule), sink.design, sink.name)
    facts, publisher = check_publishable(table.uri, sink.mode)
    if publisher is Publisher.SPARK:
        refuse_spark(sink, table.uri, channel)
    public = PublicTable(table.uri, tuple(table.metadata["partitionColumns"]), publisher, facts.table_id, facts.shape)
    if rule is None:
        name_auto_compaction(table, sink)
        return Outlet(table, public, None, frame)
    check_versions(sink, rule, table)
    frame = as_held(frame, table.schema, table.metadata["partitionColumns"])
    staged_in = event_channel(session, table, fit(frame, table.schema), channel, sink)
    grave = _tombstones(session, rule, staged_in, frame, tombstones)
    settings = {key: str(session.conf.get(key)) for key in _MEANING}
    cut = MergeCut(**vars(rule), staged_in=staged_in.uri, tombstones=grave, settings=settings)
    return Outlet(staged_in, public, cut, frame)


def plan_outlet(sink: Sink, session: SparkSession, frame: DataFrame, place: TablePlace) -> PlannedTable:
    """Decides what becomes of a sink's table; writes nothing. Errors as :func:`prepare_outlet`."""
    rule = sink.merge
    if rule:
        check_rule(sink, rule, frame)
    with suppress(NotFoundError):  # by name, before Spark meets it and fails by whatever it does not know
        check_publishable(place.uri, sink.mode)
    planned = plan_table(session, place, with_versions(frame, rule), sink.design, sink.name)
    if rule and planned.table is not None and not planned.grown:
        check_versions(sink, rule, planned.table)
    return planned


def name_auto_compaction(table: StagingTable, sink: Sink) -> None:
    """Tells the driver's log that a publication compacts nothing, and what does; not where the sink packs its files already."""
    if table.configuration.get(_AUTO_COMPACTION, "false").lower() == "false" or sink.target_file_size_bytes is not None:
        return
    _LOG.warning(
        "sink %s: table %s has %s, which a publication does not run: %s",
        sink.name,
        table.path,
        _AUTO_COMPACTION,
        "declare target_file_size=, or run OPTIMIZE" if sink.mode is SinkMode.APPEND else "run OPTIMIZE",
    )


def _tombstones(session: SparkSession, rule: MergeRule, staged_in: StagingTable, frame: DataFrame, uri: str) -> str | None:
    if rule.sequence_by is None or rule.apply_as_deletes is None:
        return None
    remembered = fit(frame, staged_in.schema).select(*(quoted(name) for name in (*rule.keys, rule.sequence_by)))
    return prepare_tombstones(session, remembered, uri).uri
