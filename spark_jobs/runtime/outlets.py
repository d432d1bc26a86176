"""Where a stage's rows go: the directory they are staged in, the public table they are for, and who will publish them."""

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructType

from spark_jobs.api.sink import SchemaEvolution, Sink, TableDesign, UpsertRule
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import Publisher, SinkMode, UpsertCut
from spark_jobs.protocol.errors import InvalidPipelineError, NotFoundError
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.runtime.staging import fit
from spark_jobs.runtime.table_places import TablePlace
from spark_jobs.runtime.tables import StagingTable, prepare_table, read_table

_PLAIN_NAME = re.compile(r"[^ ,;{}()\n\t=]+")
"""What Parquet, and so Delta without column mapping, takes for the name of a column."""
_CONSTRAINT = "delta.constraints."
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicTable:
    """The table of a stage's sink as it is before the round's first batch."""

    uri: str
    partition_by: tuple[str, ...]
    publisher: Publisher
    facts: dict[str, str]
    """What publication compares the table with, when it is time."""


@dataclass(frozen=True)
class Outlet:
    """Where a stage's rows go."""

    staged_in: StagingTable
    """The public table; or a channel, where nothing is public or rows are merged first."""
    public: PublicTable | None
    upsert: UpsertCut | None


def prepare_outlet(
    stage: Stage, session: SparkSession, frame: DataFrame, place: TablePlace | None, channel: Path, tombstones: Path
) -> Outlet:
    """Makes and checks the tables of a stage; idempotent.

    Args:
        stage: The stage.
        session: Its session.
        frame: Its result.
        place: Where the sink's table is; None without a sink.
        channel: Where rows are staged that do not go into the public table's directory.
        tombstones: Where an upsert sink's deleted keys are remembered.

    Raises:
        UnsupportedTableError: The rows do not fit the sink's table, or nobody could publish into it.
        InvalidPipelineError: The upsert rule names columns that the stage does not return.
    """
    sink = stage.sink
    if sink is None or place is None:
        return Outlet(prepare_table(session, TablePlace(channel), frame, _own_design(frame), stage.name), None, None)
    if sink.upsert:
        _check_rule(sink, sink.upsert, frame)
    with suppress(NotFoundError):  # by name, before Spark meets it and fails by whatever it does not know
        check_publishable(place.path.as_uri(), sink.mode)
    table = prepare_table(session, place, frame, sink.design, sink.name)
    facts, publisher = check_publishable(table.uri, sink.mode)
    compared = {
        "table_id": facts.table_id,
        "schema_sha256": facts.schema_sha256,
        "protocol_sha256": facts.protocol_sha256,
        "publisher": publisher.value,
    }
    public = PublicTable(table.uri, tuple(table.metadata["partitionColumns"]), publisher, compared)
    if sink.upsert is None:
        name_auto_compaction(table, sink)
        return Outlet(table, public, None)
    staged_in = _event_channel(session, table, fit(frame, table.schema), channel, sink)
    grave = _tombstones(session, sink.upsert, staged_in, frame, tombstones)
    rule = sink.upsert
    return Outlet(staged_in, public, UpsertCut(**vars(rule), staged_in=staged_in.uri, tombstones=grave))


def _own_design(frame: DataFrame) -> TableDesign:
    """A table of the runtime's own takes whatever columns the stage returns, under whatever names."""
    plain = all(_PLAIN_NAME.fullmatch(name) for name in _names(frame.schema))
    properties = {} if plain else {"delta.columnMapping.mode": "name"}
    return TableDesign(properties=properties, evolution=SchemaEvolution.ADD_COLUMNS)


def _names(kind: DataType) -> Iterator[str]:
    match kind:
        case StructType():
            for field in kind.fields:
                yield field.name
                yield from _names(field.dataType)
        case ArrayType():
            yield from _names(kind.elementType)
        case MapType():
            yield from _names(kind.keyType)
            yield from _names(kind.valueType)


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


def _event_channel(session: SparkSession, public: StagingTable, fitted: DataFrame, channel: Path, sink: Sink) -> StagingTable:
    """Where the rows of an upsert sink wait. What the public table forbids is refused here already, except of deletes."""
    channel_table = prepare_table(session, TablePlace(channel), fitted, _own_design(fitted), sink.name)
    wanted = {key.removeprefix(_CONSTRAINT): value for key, value in public.configuration.items() if key.startswith(_CONSTRAINT)}
    given = {name.lower() for name in fitted.columns}
    wanted |= {
        f"not_null_{number}": f"`{field.name}` IS NOT NULL"
        for number, field in enumerate(public.schema.fields)
        if not field.nullable and field.name.lower() in given
    }
    deletes = sink.upsert.apply_as_deletes if sink.upsert else None
    for name, condition in wanted.items():
        if f"{_CONSTRAINT}{name}".lower() not in {key.lower() for key in channel_table.configuration}:
            unless = f"coalesce(({deletes}), false) OR " if deletes else ""
            session.sql(f"ALTER TABLE delta.`{channel}` ADD CONSTRAINT `{name}` CHECK ({unless}({condition}))")
    return read_table(session, channel)


def _tombstones(session: SparkSession, rule: UpsertRule, staged_in: StagingTable, frame: DataFrame, path: Path) -> str | None:
    if rule.sequence_by is None or rule.apply_as_deletes is None:
        return None
    remembered = fit(frame, staged_in.schema).select(*(f"`{name}`" for name in (*rule.keys, rule.sequence_by)))
    return prepare_table(session, TablePlace(path), remembered, _own_design(remembered), path.name).uri


def _check_rule(sink: Sink, rule: UpsertRule, frame: DataFrame) -> None:
    known = {name.lower() for name in frame.columns}
    named = {"keys": rule.keys, "sequence_by": () if rule.sequence_by is None else (rule.sequence_by,)}
    for option, columns in named.items():
        if missing := [column for column in columns if column.lower() not in known]:
            raise InvalidPipelineError(
                f"Sink '{sink.name}' has {option} {', '.join(missing)}, which its stage does not return.",
                exists=f"The stage returns {', '.join(frame.columns)}.",
                safe="Nothing was written.",
                remedy=f"Correct {option}, or return the column.",
                sink=sink.name,
                missing=missing,
            )
    if rule.apply_as_deletes is None:
        return
    try:
        kind = frame.selectExpr(rule.apply_as_deletes).schema.fields[0].dataType
        problem = None if isinstance(kind, BooleanType) else f"is a {kind.simpleString()}, not a condition"
    except AnalysisException as error:
        problem = f"cannot be understood: {str(error).splitlines()[0]}"
    if problem:
        raise InvalidPipelineError(
            f"Sink '{sink.name}': apply_as_deletes={rule.apply_as_deletes!r} {problem}.",
            safe="Nothing was written.",
            remedy="Write a SQL condition on the stage's columns, such as \"op = 'DELETE'\".",
            sink=sink.name,
        )
