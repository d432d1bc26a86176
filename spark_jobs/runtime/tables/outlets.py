"""The outlet of a stage: the directory in which its rows are staged, their public table, and its publisher."""

import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.sink import MergeRule, Sink
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.delta_log import DELTA_LOG, LAST_CHECKPOINT
from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.table_shape import CONSTRAINT, StagedFor, StagedSince, TableShape
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.tables.channels import event_channel, own_design
from spark_jobs.runtime.tables.merge_rules import check_rule, check_versions, with_versions
from spark_jobs.runtime.tables.schemas import as_held, fit
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import PlannedTable, StagingTable, apply_plan, plan_table, prepare_table
from spark_jobs.runtime.tables.tombstones import prepare_tombstones
from spark_jobs.storage.checksums import add_missing_checksums
from spark_jobs.storage.table_uris import table_files

_MEANING = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""The settings that decide the results of ``apply_as_deletes`` and of a table's generated columns and constraints."""
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicTable:
    """The table of a stage's sink before the round's first batch."""

    uri: str
    partition_by: tuple[str, ...]
    publisher: Publisher
    table_id: str
    shape: TableShape
    """The shape with which the publication compares the table."""

    @property
    def staged_for(self) -> StagedFor:
        """Returns the table's entry for a new private log."""
        return StagedFor(table_id=self.table_id, since=(StagedSince(first=BatchId(0), shape=self.shape),))


@dataclass(frozen=True)
class Outlet:
    """The destination of a stage's rows."""

    staged_in: StagingTable
    """The public table, or a channel for rows that are not public or are merged first."""
    public: PublicTable | None
    merge: MergeCut | None
    frame: DataFrame
    """The frame that is staged."""

    def is_own_constraint(self, name: str) -> bool:
        """Returns True for a CHECK constraint of the staging table that it does not have from the public table."""
        if not self.is_own or self.public is None:
            return False
        public = {key.casefold() for key in self.public.shape.configuration}
        return f"{CONSTRAINT}{name}".casefold() not in public

    @property
    def is_own(self) -> bool:
        """Returns True if rows are staged in a directory without public rows."""
        return self.public is None or self.merge is not None


def prepare_outlet(
    stage: Stage, session: SparkSession, frame: DataFrame, place: TablePlace | None, channel: str, tombstones: str
) -> Outlet:
    """Creates and checks the tables of a stage. Idempotent.

    Files in the logs of the runtime's own tables get checksums, because no document has their hashes.

    Args:
        stage: The stage.
        session: Its session.
        frame: Its result.
        place: Place of the sink's table; None without a sink.
        channel: URI of the table for rows that are not staged in the public table's directory.
        tombstones: URI of the table for the deleted keys of a sink with keys.

    Raises:
        UnsupportedTableError: The rows do not fit the sink's table, or no publisher can publish into it.
        InvalidPipelineError: The merge rule does not fit the stage's result.
    """
    sink = stage.sink
    if sink is None or place is None:
        staged_in = prepare_table(session, TablePlace(channel), frame, own_design(frame), stage.name)
        add_missing_checksums(table_files(staged_in.uri), DELTA_LOG, {LAST_CHECKPOINT})
        return Outlet(staged_in, None, None, frame)
    rule = sink.merge
    planned = plan_outlet(sink, session, frame, place)
    table = apply_plan(planned, session, place, with_versions(frame, rule), sink.design, sink.name)
    unchanged = planned.publishable if table is planned.table else None
    facts, publisher = unchanged or check_publishable(table.uri, sink.mode)
    public = PublicTable(table.uri, tuple(table.metadata["partitionColumns"]), publisher, facts.table_id, facts.shape)
    if rule is None:
        name_auto_compaction(table, sink)
        return Outlet(table, public, None, frame)
    check_versions(sink, rule, table)
    frame = as_held(frame, table.schema, table.metadata["partitionColumns"])
    staged_in = event_channel(session, table, fit(frame, table.schema), channel, sink)
    grave = _tombstones(session, rule, staged_in, frame, tombstones)
    for uri in filter(None, (staged_in.uri, grave)):
        add_missing_checksums(table_files(uri), DELTA_LOG, {LAST_CHECKPOINT})
    settings = {key: str(session.conf.get(key)) for key in _MEANING}
    cut = MergeCut(**vars(rule), staged_in=staged_in.uri, tombstones=grave, settings=settings)
    return Outlet(staged_in, public, cut, frame)


def plan_outlet(sink: Sink, session: SparkSession, frame: DataFrame, place: TablePlace) -> PlannedTable:
    """Plans the changes of a sink's table. Writes nothing. The errors are those of :func:`prepare_outlet`."""
    rule = sink.merge
    if rule:
        check_rule(sink, rule, frame)
    publishable = None
    with suppress(NotFoundError):  # checked here, because Spark would fail with an unclear error
        publishable = check_publishable(place.uri, sink.mode)
    planned = plan_table(session, place, with_versions(frame, rule), sink.design, sink.name)
    if rule and planned.table is not None and not planned.grown:
        check_versions(sink, rule, planned.table)
    if (
        publishable is None
        or planned.table is None
        or _version(planned.table) != (publishable[0].table_id, publishable[0].version)
    ):
        return planned
    return replace(planned, publishable=publishable)


def _version(table: StagingTable) -> tuple[str, int]:
    return str(table.metadata["id"]), table.version


def name_auto_compaction(table: StagingTable, sink: Sink) -> None:
    """Logs that a publication does not compact a table with auto compaction, and what does. Not for sinks that pack their files."""
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
