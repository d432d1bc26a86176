"""The Delta tables that stages stage into. Missing tables are created and existing ones are checked before anything is staged."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from spark_jobs.api.sink import SchemaEvolution, TableDesign
from spark_jobs.background import run_all, try_ahead
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import UnsupportedTableError, first_line
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.table_shape import COLUMN_MAPPING, GENERATED
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.delta_rs import TableFacts
from spark_jobs.publication.sql_names import delta_at, quoted
from spark_jobs.runtime.tables.new_tables import create_table, give_name, is_unnamed
from spark_jobs.runtime.tables.schemas import (
    FieldPath,
    Growth,
    fit,
    growth,
    lacking,
    mapped_names,
    same_names,
    unknown_fields,
)
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.table_uris import spark_path

_DEFAULT = "CURRENT_DEFAULT"
_FEATURE = "delta.feature."
_VERSIONS = frozenset({"delta.minreaderversion", "delta.minwriterversion"})
_ARRANGED = {"partition_by": "is partitioned by", "cluster_by": "is clustered by"}
_REARRANGED = {
    "partition_by": "or give the sink another table; or rewrite this one while the pipeline does not run: "
    "spark.read.format('delta').load({path!r}).write.format('delta').mode('overwrite').option('overwriteSchema', True)"
    ".partitionBy({names}).save({path!r})",
    "cluster_by": "or change the table: ALTER TABLE {table} CLUSTER BY ({columns})",
}
"""The remedy, by option. An overwrite keeps the table's properties and constraints; CREATE OR REPLACE TABLE would drop them."""
_TYPE_WIDENING = "delta.enableTypeWidening"


@dataclass(frozen=True)
class StagingTable:
    """A Delta table before a round's first batch."""

    uri: str
    """The percent-encoded URI that the paths in Delta's actions are relative to."""
    schema: StructType
    metadata: dict[str, Any]
    protocol: dict[str, Any]
    version: int

    @property
    def path(self) -> str:
        """Returns Spark's name for the directory."""
        return spark_path(self.uri)

    @property
    def configuration(self) -> Mapping[str, str]:
        """Returns the table's properties."""
        found: dict[str, str] = self.metadata["configuration"]
        return found


@dataclass(frozen=True)
class PlannedTable:
    """The plan of a start for a table."""

    table: StagingTable | None
    """The present table. None: it will be created."""
    grown: Growth
    """The columns and types that it gets."""
    partition_by: tuple[str, ...]
    """The columns that it is partitioned by."""
    publishable: tuple[TableFacts, Publisher] | None = None
    """What a publication finds in the version that is planned with. None: look again."""


def plan_table(session: SparkSession, place: TablePlace, frame: DataFrame, design: TableDesign, name: str) -> PlannedTable:
    """Plans the changes of a table for the rows of a stage. Writes nothing.

    Args:
        session: The stage's session.
        place: Place of the table.
        frame: Frame that will be staged for it.
        design: Design that it is created by and must fulfil.
        name: Name of the sink or stage, for errors.

    Raises:
        UnsupportedTableError: The frame's rows do not fit the table, or the table is not as designed.
    """
    found = find_table(session, place.uri)
    if found is None:
        _check_arranged(frame, design, name)
        return PlannedTable(None, Growth(frame.schema), design.partition_by)
    _check_named(session, found, place, name)
    grown = _growth(found, frame, design)
    _check_fits(found, frame, name, grown)
    _check_design(session, found, design, name)
    return PlannedTable(found, grown, tuple(found.metadata["partitionColumns"]))


def prepare_table(session: SparkSession, place: TablePlace, frame: DataFrame, design: TableDesign, name: str) -> StagingTable:
    """Returns the table. Creates it with the frame's columns if it is missing, and widens it if the design allows. Idempotent.

    The arguments and errors are those of :func:`plan_table`.
    """
    return apply_plan(plan_table(session, place, frame, design, name), session, place, frame, design, name)


def apply_plan(
    planned: PlannedTable, session: SparkSession, place: TablePlace, frame: DataFrame, design: TableDesign, name: str
) -> StagingTable:
    """Returns the table as :func:`plan_table` has decided just now: made if it is missing, named, grown if it has to; idempotent.

    The other arguments and the errors are those of :func:`plan_table`.
    """
    if planned.table is None:
        create_table(session, place, frame.schema, design, name)
        table = read_table(session, place.uri)
        planned = replace(planned, table=table, grown=_growth(table, frame, design))
        _check_fits(table, frame, name, planned.grown)
    assert planned.table is not None
    give_name(session, place, name)
    if not planned.grown:
        return planned.table
    _grow(session, planned.table, planned.grown, name)
    return read_table(session, place.uri)


def read_table(session: SparkSession, uri: str) -> StagingTable:
    """Returns the existing table at ``uri``."""
    found = find_table(session, uri)
    assert found is not None, uri
    return found


def find_table(session: SparkSession, uri: str) -> StagingTable | None:
    """Returns the table at ``uri``, or None if there is none."""
    version, metadata, protocol = DeltaJvm(session).snapshot(spark_path(uri))
    if version < 0:
        return None
    return StagingTable(uri, StructType.fromJson(json.loads(metadata["schemaString"])), metadata, protocol, version)


def read_ahead(session: SparkSession, uris: Iterable[str]) -> None:
    """Lets Delta read the logs of tables, all at the same time. It keeps what it has read. Leaves errors to :func:`find_table`."""
    run_all([partial(try_ahead, partial(find_table, session, uri), f"read the log of {uri}") for uri in uris])


def _check_named(session: SparkSession, table: StagingTable, place: TablePlace, name: str) -> None:
    """Refuses a table with rows that the catalog does not know by the sink's name: it may be one that was dropped, or another's.

    A start that died before the catalog had the name has left one without rows.
    """
    if is_unnamed(session, place) and not session.read.format("delta").load(table.path).isEmpty():
        raise UnsupportedTableError(
            f"Spark's catalog has no table {place.name}, but there is a Delta table with rows where it would be created: {table.path}.",
            exists="DROP TABLE keeps the files of an external table.",
            remedy=f"If the rows belong to the sink, run CREATE TABLE {place.name} USING delta LOCATION '{place.location}'. If not, move "
            "the files away.",
            sink=name,
            table=place.name,
            location=table.path,
        )


def _check_arranged(frame: DataFrame, design: TableDesign, name: str) -> None:
    for option, what in _ARRANGED.items():
        if missing := lacking(getattr(design, option), frame.columns):
            raise UnsupportedTableError(
                f"Sink '{name}' {what} {', '.join(missing)}, which its stage does not return.",
                exists=f"The stage returns {', '.join(frame.columns)}.",
                safe="No table was created.",
                remedy=f"Correct {option}, or return the column.",
                sink=name,
                missing=missing,
                columns=frame.columns,
            )


def _growth(table: StagingTable, frame: DataFrame, design: TableDesign) -> Growth:
    """Returns the changes of the table before anything is staged: none unless the design allows them."""
    if design.evolution is not SchemaEvolution.ADD_COLUMNS:
        return Growth(table.schema)
    allowed = design.widens or table.configuration.get(_TYPE_WIDENING, "false").lower() == "true"
    # Delta does not widen partition columns
    partitions = {column.lower() for column in table.metadata["partitionColumns"]}
    return growth(table.schema, frame.schema, widen=lambda path: allowed and path[0].lower() not in partitions)


def _grow(session: SparkSession, table: StagingTable, grown: Growth, name: str) -> None:
    """Alters the table. A start that dies between two statements is followed by one that finds the missing changes and goes on."""
    statements = []
    if grown.added:
        statements.append(f"ADD COLUMNS ({', '.join(f'{_path(path)} {_ddl(kind)}' for path, kind in grown.added.items())})")
    if grown.widened and table.configuration.get(_TYPE_WIDENING, "false").lower() != "true":
        statements.append(f"SET TBLPROPERTIES ('{_TYPE_WIDENING}' = 'true')")
    statements += [f"ALTER COLUMN {_path(path)} TYPE {_ddl(kind)}" for path, kind in grown.widened.items()]
    for statement in statements:
        try:
            with step(Step.TABLE_ALTER):
                session.sql(f"ALTER TABLE {delta_at(table.path)} {statement}")
        except AnalysisException as error:
            raise UnsupportedTableError(
                f"Table {table.path} cannot get {', '.join(grown.names)} as the stage of sink '{name}' returns them: "
                f"{first_line(error)}",
                exists=f"The statement was ALTER TABLE … {statement}.",
                safe="Nothing was staged.",
                remedy="Rename a column that the table cannot have. Cast one that it cannot widen to the table's type (CAST).",
                sink=name,
                table=table.uri,
            ) from error


def _path(path: FieldPath) -> str:
    return ".".join(map(quoted, path))


def _ddl(kind: DataType) -> str:
    """Returns a type in SQL. Names of fields are quoted if necessary."""
    return StructType([StructField("c", kind)]).toDDL().removeprefix("c ")


def _check_design(session: SparkSession, table: StagingTable, design: TableDesign, name: str) -> None:
    """Refuses an existing table that differs from its sink's declaration."""
    arranged = {"partition_by": list(table.metadata["partitionColumns"])}
    if design.cluster_by:
        detail: Any = session.sql(f"DESCRIBE DETAIL {delta_at(table.path)}").first()
        arranged["cluster_by"] = list(detail["clusteringColumns"])
    for option, columns in arranged.items():
        declared = list(getattr(design, option))
        if declared and not same_names(declared, columns):
            remedy = _REARRANGED[option].format(
                path=table.path,
                names=", ".join(map(repr, declared)),
                table=delta_at(table.path),
                columns=", ".join(map(quoted, declared)),
            )
            raise _not_as_designed(
                table, name, f"{option}={declared}", f"{_ARRANGED[option]} {columns}", declared, columns, remedy
            )
    configuration = {key.lower(): value for key, value in table.configuration.items()}
    features = {*table.protocol.get("readerFeatures", ()), *table.protocol.get("writerFeatures", ())}
    for key, value in design.properties.items():
        if key.lower() in _VERSIONS:
            continue
        if key.startswith(_FEATURE):
            found: str | None = "supported" if key.removeprefix(_FEATURE) in features else None
        else:
            found = configuration.get(key.lower())
        if found is None or found.lower() != value.lower():
            remedy = "or change the table (ALTER TABLE)."
            raise _not_as_designed(table, name, f"the property {key}={value!r}", f"has {key}={found!r}", value, found, remedy)


def _not_as_designed(
    table: StagingTable, name: str, declared: str, actual: str, expected: object, found: object, remedy: str
) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"Sink '{name}' is declared with {declared}, but table {table.path} {actual}.",
        remedy=f"Declare the table's own value, or leave it out; {remedy}",
        sink=name,
        table=table.uri,
        expected=expected,
        found=found,
    )


def _check_fits(table: StagingTable, frame: DataFrame, name: str, grown: Growth) -> None:
    facts = {"sink": name, "table": table.uri}
    added = StructType([StructField(path[-1], kind) for path, kind in grown.added.items()])
    if table.configuration.get(COLUMN_MAPPING, "none") == "none" and (unnameable := mapped_names(added)):
        raise UnsupportedTableError(
            f"The stage of sink '{name}' returns {', '.join(map(repr, unnameable))}, a name that table {table.path} cannot have.",
            exists=f"The table has no column mapping ({COLUMN_MAPPING}).",
            remedy="Rename the column in the stage (AS), or enable column mapping for the table.",
            **facts,
        )
    extra = unknown_fields(frame.schema, grown.schema)
    required = lacking(
        [f.name for f in table.schema.fields if not f.nullable and not {GENERATED, _DEFAULT} & f.metadata.keys()], frame.columns
    )
    if extra or required:
        problem = (
            f"returns {', '.join(extra)}, which the table does not have" if extra else f"lacks {', '.join(required)} (NOT NULL)"
        )
        adding = 'add them with ALTER TABLE … ADD COLUMNS, or declare schema_evolution="add_columns", which adds them.'
        raise UnsupportedTableError(
            f"The stage of sink '{name}' {problem}.",
            exists=f"Table {table.path} has {', '.join(table.schema.names)}.",
            remedy=f"Leave them out of the stage's select, {adding}" if extra else "Return them from the stage.",
            extra=extra,
            missing=required,
            **facts,
        )
    try:
        fit(frame, grown.schema).schema  # noqa: B018 - Spark analyses the casts here
    except AnalysisException as error:
        raise UnsupportedTableError(
            f"The rows of sink '{name}' do not fit the columns of table {table.path}: {first_line(error)}",
            remedy="Cast the columns in the stage.",
            **facts,
        ) from error
