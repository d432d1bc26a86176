"""Rules of upsert sinks that do not fit what their stages return: they are refused before anything is written."""

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType

from spark_jobs.api.sink import MergeRule, Sink
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.publication.merges import has_order
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.tables.schemas import lacking

_SAFE = "Nothing was written."


def check_rule(sink: Sink, rule: MergeRule, frame: DataFrame) -> None:
    """Refuses a rule that no publication of the frame's rows could follow.

    Raises:
        InvalidPipelineError: It names columns that are not there or cannot be compared, or its condition is none.
    """
    known = {field.name.lower(): field for field in frame.schema.fields}
    for option, columns in {"keys": rule.keys, "sequence_by": () if rule.sequence_by is None else (rule.sequence_by,)}.items():
        if missing := lacking(columns, known):
            raise InvalidPipelineError(
                f"Sink '{sink.name}' has {option} {', '.join(missing)}, which its stage does not return.",
                exists=f"The stage returns {', '.join(frame.columns)}.",
                safe=_SAFE,
                remedy=f"Correct {option}, or return the column.",
                sink=sink.name,
                missing=missing,
            )
        kinds = {column: known[column.lower()].dataType for column in columns}
        if unordered := {column: kind.simpleString() for column, kind in kinds.items() if not has_order(kind)}:
            raise InvalidPipelineError(
                f"Sink '{sink.name}' has {option} {', '.join(unordered)}, whose values cannot be compared: "
                f"{', '.join(unordered.values())}.",
                exists="Maps and variants, and what contains them, have no order.",
                safe=_SAFE,
                remedy=f"Return what identifies or orders the rows as a column of its own, and name that in {option}.",
                sink=sink.name,
                columns=unordered,
            )
    if rule.apply_as_deletes is not None and (problem := _problem(rule.apply_as_deletes, frame)):
        raise InvalidPipelineError(
            f"Sink '{sink.name}': apply_as_deletes={rule.apply_as_deletes!r} {problem}.",
            safe=_SAFE,
            remedy="Write a SQL condition on the stage's columns, such as \"op = 'DELETE'\".",
            sink=sink.name,
        )


def _problem(condition: str, frame: DataFrame) -> str | None:
    """Why a condition does not say of each row by itself whether it deletes its key."""
    rows = frame.sparkSession.createDataFrame([], frame.schema)
    try:
        kind = rows.selectExpr(condition).schema.fields[0].dataType
        chosen = rows.where(condition)  # refuses aggregates and the like
    except AnalysisException as error:
        return f"cannot be understood: {str(error).splitlines()[0]}"
    if not isinstance(kind, BooleanType):
        return f"is a {kind.simpleString()}, not a condition"
    if plan.has_subqueries(chosen):
        return "has a subquery"
    return None if plan.is_deterministic(chosen) else "may say otherwise the next time"
