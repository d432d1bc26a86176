"""Refuses merge rules of sinks with keys that do not fit the results of their stages, before anything is written."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from spark_jobs.api.sink import MergeRule, Sink
from spark_jobs.protocol.errors import InvalidPipelineError, UnsupportedTableError
from spark_jobs.publication.merges import has_order
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.spark.conditions import condition_problem
from spark_jobs.runtime.tables.schemas import lacking
from spark_jobs.runtime.tables.tables import StagingTable


def check_rule(sink: Sink, rule: MergeRule, frame: DataFrame) -> None:
    """Refuses a rule that no publication of the frame's rows could follow.

    Raises:
        InvalidPipelineError: It names columns that are missing or not comparable, its condition is invalid, or the stage returns
            columns that the publication fills.
    """
    known = {field.name.lower(): field for field in frame.schema.fields}
    if taken := [known[name].name for name in rule.version_columns if name in known]:
        raise InvalidPipelineError(
            f"Sink '{sink.name}' has mode=\"history\", and its stage returns {', '.join(taken)}.",
            exists=f"The publication fills {', '.join(rule.version_columns)}.",
            remedy="Rename the column in the stage (AS).",
            sink=sink.name,
            columns=taken,
        )
    for option, columns in {"keys": rule.keys, "sequence_by": () if rule.sequence_by is None else (rule.sequence_by,)}.items():
        if missing := lacking(columns, known):
            raise InvalidPipelineError(
                f"Sink '{sink.name}' has {option} {', '.join(missing)}, which its stage does not return.",
                exists=f"The stage returns {', '.join(frame.columns)}.",
                remedy=f"Correct {option}, or return the column.",
                sink=sink.name,
                missing=missing,
            )
        kinds = {column: known[column.lower()].dataType for column in columns}
        if unordered := {column: kind.simpleString() for column, kind in kinds.items() if not has_order(kind)}:
            raise InvalidPipelineError(
                f"Sink '{sink.name}' has {option} {', '.join(unordered)}, whose values cannot be compared: "
                f"{', '.join(unordered.values())}.",
                exists="Maps, variants and types that contain them have no order.",
                remedy=f"Return the identifying or ordering value as a separate column, and name that in {option}.",
                sink=sink.name,
                columns=unordered,
            )
    if rule.apply_as_deletes is not None and (problem := condition_problem(rule.apply_as_deletes, frame)):
        raise InvalidPipelineError(
            f"Sink '{sink.name}': apply_as_deletes={rule.apply_as_deletes!r} {problem}.",
            remedy="Write a SQL condition on the stage's columns, such as \"op = 'DELETE'\".",
            sink=sink.name,
        )


def with_versions(frame: DataFrame, rule: MergeRule | None) -> DataFrame:
    """Returns the frame with the columns that the publication of a history adds, with the types of its table."""
    if rule is None or not rule.version_columns:
        return frame
    start, end, current = rule.version_columns
    sequence = F.col(quoted(str(rule.sequence_by)))
    return frame.withColumns({start: sequence, end: sequence, current: F.lit(True)})


def check_versions(sink: Sink, rule: MergeRule, table: StagingTable) -> None:
    """Refuses a table that cannot store the validity of a history's versions.

    Raises:
        UnsupportedTableError: A column has another type than the one that orders the rows, or does not allow null.
    """
    if not rule.version_columns:
        return
    fields = {field.name.lower(): field for field in table.schema.fields}
    start, end, current = rule.version_columns
    sequence = fields[str(rule.sequence_by).lower()].dataType
    wanted = {start: sequence, end: sequence, current: BooleanType()}
    wrong = {name: fields[name].dataType.simpleString() for name, expected in wanted.items() if fields[name].dataType != expected}
    if not fields[end].nullable:
        wrong[end] = f"{fields[end].dataType.simpleString()} NOT NULL"
    if wrong:
        found = ", ".join(f"{name} {kind}" for name, kind in wrong.items())
        raise UnsupportedTableError(
            f"Table {table.path} has {found}, which cannot store the versions of sink '{sink.name}'.",
            exists=f"Its column {rule.sequence_by}, which orders the rows, is {sequence.simpleString()}.",
            safe="Nothing was staged.",
            remedy=f"Give {start} and {end} the type of {rule.sequence_by}, {current} BOOLEAN, and let {end} be null. "
            "Or name another table.",
            sink=sink.name,
            table=table.uri,
            columns=wrong,
        )
