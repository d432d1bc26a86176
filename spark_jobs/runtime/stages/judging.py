"""Compares a stage's rows with its expectations: adds the names of violated ones to each row, or fails its batch."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from spark_jobs.api.expectations import (
    CURRENT_WATERMARK,
    VIOLATED,
    VIOLATED_AT,
    VIOLATED_IN_BATCH,
    VIOLATION_COLUMNS,
    Expectations,
)
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.errors import BEGIN_ANEW, InvalidPipelineError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.conditions import condition_problem
from spark_jobs.runtime.spark.spark_errors import messages

_REMEDY = "Write a SQL condition on the columns that the stage returns."
_MARK = "rows violate expectations of their stage: "
_VIOLATED = re.compile(f"{_MARK}([\\w, ]+)\\.")
"""Matches the mark in an error's message. A plan contains the mark, too, but without names after it."""


def with_violations(stage: Stage, frame: DataFrame) -> DataFrame:
    """Returns a stage's result for staging: with columns for the violated expectations of each row, if the stage sorts its rows.

    The columns are null until :func:`of_batch` fills them.

    Raises:
        InvalidPipelineError: A condition is invalid. The error lists all of them.
    """
    expectations = stage.expectations
    if expectations is None:
        return frame
    _check(stage, expectations, frame)
    if not expectations.sorts:
        return frame
    names = F.lit(None).cast(ArrayType(StringType(), containsNull=False)).alias(VIOLATED)
    batch = F.lit(None).cast("bigint").alias(VIOLATED_IN_BATCH)
    return frame.select("*", names, batch, F.current_timestamp().alias(VIOLATED_AT))


def of_batch(expectations: Expectations, frame: DataFrame, batch: BatchId, watermark_ms: int) -> DataFrame:
    """Returns the rows of a batch for staging: with what they violate, or with a check that fails the batch at the first violation.

    The frame is that of ``foreachBatch``, so a filter on it does not change the plan of the stage.

    Args:
        expectations: The expectations of the stage.
        frame: The rows of the batch.
        batch: The number of the batch.
        watermark_ms: The watermark of the stage's inputs before the batch.
    """
    judged = frame.withColumn(CURRENT_WATERMARK, F.timestamp_millis(F.lit(watermark_ms)))
    if expectations.sorts:
        judged = judged.withColumns({VIOLATED: F.expr(expectations.violated), VIOLATED_IN_BATCH: F.lit(batch).cast("bigint")})
    else:
        names = f"concat('{_MARK}', array_join({expectations.violated}, ', '), '.')"
        judged = judged.where(f"CASE WHEN ({expectations.violated}) IS NULL THEN true ELSE raise_error({names}) END")
    return judged.drop(CURRENT_WATERMARK)


def failed_by(error: BaseException, stage: Stage, batch: BatchId) -> StreamPipelineError | None:
    """Returns the error for a batch that failed because a row violates an expectation, or None for other failures."""
    found = next((match for text in messages(error) if (match := _VIOLATED.search(text))), None)
    if found is None or stage.expectations is None:
        return None
    names = found[1].split(", ")
    said = "; ".join(f"{name}: {stage.expectations.conditions.get(name, '')}" for name in names)
    return RejectedError(
        f"Batch {batch} of stage '{stage.name}' has a row that violates expectations of the stage: {said}.",
        exists=f"The batches before {batch} are staged.",
        safe="No row of this batch is staged or public.",
        remedy="Correct the condition or the stage's function, and run it again: it continues. "
        f'Or declare on_violation="drop" or "divert", and {BEGIN_ANEW}.',
        stage=stage.name,
        batch=batch,
        expectations=names,
    )


def has_violations(adds: Sequence[Mapping[str, Any]]) -> bool:
    """Returns True if staged files may contain rows that violate an expectation, by the statistics that Delta wrote."""
    counted = [json.loads(add["stats"]) for add in adds]
    return any(each.get("nullCount", {}).get(VIOLATED) != each["numRecords"] for each in counted)


def violations_of(staged: DataFrame) -> dict[str, int]:
    """Returns the number of a batch's staged rows that violate each expectation. A row that violates two counts for both."""
    rows = staged.select(F.explode(VIOLATED).alias("name")).groupBy("name").count().collect()
    return {row["name"]: row["count"] for row in sorted(rows)}


def _check(stage: Stage, expectations: Expectations, frame: DataFrame) -> None:
    with_watermark = frame.withColumn(CURRENT_WATERMARK, F.lit(None).cast("timestamp"))
    without = _without_watermark(frame)
    mistakes = Mistakes()
    for name, condition in expectations.conditions.items():
        problem, remedy = condition_problem(condition, with_watermark), _REMEDY
        if problem is None and without is not None and condition_problem(condition, frame):
            problem, remedy = without
        if problem:
            with mistakes.noted():
                raise InvalidPipelineError(
                    f"Stage '{stage.name}': its expectation {name} ({condition}) {problem}.",
                    exists=f"The stage returns {', '.join(frame.columns)}.",
                    remedy=remedy,
                    stage=stage.name,
                    expectation=name,
                )
    reserved = {CURRENT_WATERMARK, *(VIOLATION_COLUMNS if expectations.sorts else ())}
    taken = [column for column in frame.columns if column.casefold() in reserved]
    if taken:
        with mistakes.noted():
            raise InvalidPipelineError(
                f"Stage '{stage.name}' returns {', '.join(taken)}, but its expectations use such a column.",
                exists=f"They use {', '.join(sorted(reserved))}.",
                remedy="Rename the column in the stage (AS).",
                stage=stage.name,
                columns=taken,
            )
    mistakes.check()


def _without_watermark(frame: DataFrame) -> tuple[str, str] | None:
    """Returns why a condition cannot use the watermark, and the remedy. None if it can. A batch frame has the watermark of its batch."""
    if not frame.isStreaming:
        return None
    if plan.is_stateful(frame):
        why = f"uses {CURRENT_WATERMARK} in a stage that keeps a state, which drops late rows before a condition sees them"
        return why, "Declare the expectation on a stage before this one."
    if not plan.watermark_nodes(frame):
        return f"uses {CURRENT_WATERMARK}, but no input of the stage has an event time", "Declare event_time= on the source."
    return None
