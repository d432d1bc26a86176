"""The runtime's own tables, for rows that are not staged in a public table's directory."""

from collections.abc import Mapping
from contextlib import suppress

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.sink import SchemaEvolution, Sink, TableDesign
from spark_jobs.protocol.errors import UnsupportedTableError, first_line
from spark_jobs.protocol.table_shape import COLUMN_MAPPING, CONSTRAINT
from spark_jobs.publication.sql_names import delta_at, quoted
from spark_jobs.runtime.tables.schemas import growth, lacking, mapped_names, text_limit
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import StagingTable, find_table, prepare_table, read_table
from spark_jobs.storage.table_uris import spark_path

_DECIDED = "decided_apply_as_deletes"


def own_design(frame: DataFrame, properties: Mapping[str, str] | None = None) -> TableDesign:
    """Returns the design of an own table: it accepts all columns of the stage, with any names and with wider types."""
    mapped = {COLUMN_MAPPING: "name"} if mapped_names(frame.schema) else {}
    return TableDesign(properties={**mapped, **(properties or {})}, evolution=SchemaEvolution.ADD_COLUMNS, widens=True)


def event_channel(session: SparkSession, public: StagingTable, fitted: DataFrame, channel: str, sink: Sink) -> StagingTable:
    """Creates the table in which the rows of a sink with keys wait. It checks the public table's constraints already, except for deletes.

    Constraints on columns that the stage does not return are left to the MERGE, which knows their values.

    Args:
        session: The stage's session.
        public: Table of the sink.
        fitted: Result of the stage with the table's names and types.
        channel: URI of the channel.
        sink: The sink.

    Raises:
        UnsupportedTableError: A constraint of the table cannot be checked on the stage's rows.
    """
    deletes = sink.merge.apply_as_deletes if sink.merge else None
    unless = f"coalesce(({deletes}), false) OR " if deletes else ""
    asked = _constraints(public, fitted)
    wanted = {name: f"{unless}({condition})" for name, condition in asked.items()}
    _forget_constraints(session, channel, fitted, wanted, deletes)
    table = prepare_table(session, TablePlace(channel), fitted, own_design(fitted), sink.name)
    if deletes:
        _fail_where_undecided(session, table, deletes)
    for name, condition in wanted.items():
        if _has_constraint(table, name) or not _resolves(session, table, asked[name]):
            continue
        try:
            _add_constraint(session, table, name, condition)
        except AnalysisException as error:
            raise UnsupportedTableError(
                f"The constraint {name} ({condition}) of table {public.path} cannot be checked on the rows of sink '{sink.name}': "
                f"{first_line(error)}",
                exists="The rows of a sink with keys are checked when they are staged, except deletes.",
                safe="Nothing was staged.",
                remedy="Simplify apply_as_deletes to a condition that a CHECK constraint may have, or drop the constraint.",
                sink=sink.name,
                table=public.uri,
                constraint=name,
            ) from error
    return read_table(session, channel)


def _forget_constraints(
    session: SparkSession, channel: str, fitted: DataFrame, wanted: Mapping[str, str], deletes: str | None
) -> None:
    """Drops the channel's constraints that the public table does not have any more. Drops all if types are widened, which they prevent."""
    table = find_table(session, channel)
    if table is None:
        return
    expected = {name.casefold(): condition for name, condition in wanted.items()}
    if deletes:
        expected[_DECIDED] = _decided(deletes)
    widens = bool(growth(table.schema, fitted.schema, widen=lambda _: True).widened)
    for key, condition in table.configuration.items():
        name = key.removeprefix(CONSTRAINT)
        known = "".join(expected.get(name.casefold(), "").split())  # Delta changes the spaces in conditions
        if key.startswith(CONSTRAINT) and (widens or known != "".join(condition.split())):
            session.sql(f"ALTER TABLE {delta_at(spark_path(channel))} DROP CONSTRAINT {quoted(name)}")


def _constraints(public: StagingTable, fitted: DataFrame) -> dict[str, str]:
    absent = lacking(public.schema.names, fitted.columns)
    required = {
        f"not_null_{number}": f"{quoted(field.name)} IS NOT NULL"
        for number, field in enumerate(public.schema.fields)
        if not field.nullable and field.name not in absent
    }
    checks = {key.removeprefix(CONSTRAINT): value for key, value in public.configuration.items() if key.startswith(CONSTRAINT)}
    limits = {
        f"length_{number}": f"length({quoted(field.name)}) <= {limit.length}"
        for number, field in enumerate(public.schema.fields)
        if field.name not in absent and (limit := text_limit(field))
    }
    return required | limits | checks


def _fail_where_undecided(session: SparkSession, table: StagingTable, deletes: str) -> None:
    """Fails the batch of a row on which ``apply_as_deletes`` fails, such as by a cast: its publication could never succeed.

    The condition is evaluated, and its result ignored. A condition that cannot be a constraint is left to the publication.
    """
    if _has_constraint(table, _DECIDED):
        return
    with suppress(AnalysisException):
        _add_constraint(session, table, _DECIDED, _decided(deletes))


def _decided(deletes: str) -> str:
    return f"coalesce(CAST(({deletes}\n) AS INT), 0) < 2"


def _has_constraint(table: StagingTable, name: str) -> bool:
    return not lacking([f"{CONSTRAINT}{name}"], table.configuration)


def _add_constraint(session: SparkSession, table: StagingTable, name: str, condition: str) -> None:
    session.sql(f"ALTER TABLE {delta_at(table.path)} ADD CONSTRAINT {quoted(name)} CHECK ({condition})")


def _resolves(session: SparkSession, table: StagingTable, condition: str) -> bool:
    try:
        session.read.format("delta").load(table.path).where(condition)
    except AnalysisException:
        return False
    return True
