"""Checks SQL conditions of users before anything is written."""

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType

from spark_jobs.protocol.errors import first_line
from spark_jobs.runtime.spark import plan


def condition_problem(condition: str, frame: DataFrame) -> str | None:
    """Returns the reason why a condition is not a deterministic predicate of single rows of a frame, or None."""
    rows = frame.sparkSession.createDataFrame([], frame.schema)
    try:
        kind = rows.selectExpr(condition).schema.fields[0].dataType
        chosen = rows.where(condition)  # refuses aggregates and similar expressions
    except AnalysisException as error:
        return f"cannot be understood: {first_line(error)}"
    if not isinstance(kind, BooleanType):
        return f"is a {kind.simpleString()}, not a condition"
    if plan.has_subqueries(chosen):
        return "has a subquery"
    return None if plan.is_deterministic(chosen) else "may give another result the next time"
