"""Reads the rows that a drain has left in a stage's state, with Spark's state reader. Some of them are in no metric."""

import logging
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.plan import JOIN, JOIN_SIDE, TIMEOUT, TIMER
from spark_jobs.runtime.spark.session import spark_failures

_LOG = logging.getLogger(__name__)
_KEYS = 5
_TIMERS, _GROUPS = "transformWithState", "WithState"


def left_in_state(
    session: SparkSession, checkpoint: str, batch: BatchId, counted: Mapping[str, int], *, timers: bool
) -> tuple[dict[str, int], list[str]]:
    """Returns the number of rows that a drain has left in the state, by operator, and a few of their keys. Keys of timers have their times.

    Args:
        session: Session of the stage.
        checkpoint: Spark checkpoint directory of the stage.
        batch: The last batch.
        counted: Spark's counts by operator. They may include groups that are kept without a timeout, and rows of the side of a join that
            the watermark does not flush.
        timers: True if an operator can have timers, which Spark does not count.
    """
    sides = {operator: side for operator in counted if (side := JOIN_SIDE.fullmatch(operator))}
    left = {operator: rows for operator, rows in counted.items() if operator != TIMEOUT and operator not in sides}
    if not counted and not timers:
        return {}, []
    keys: list[str] = []
    for side in sides.values():
        reader = session.read.format("statestore").option("batchId", batch).option("operatorId", side["operator"])
        held = reader.option("joinSide", side["side"]).load(checkpoint)
        if rows := held.count():
            left[JOIN] = left.get(JOIN, 0) + rows
            keys += _some(held)
    stores = session.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName", "stateStoreName")
    for store in stores.distinct().collect():
        reader = session.read.format("statestore").option("batchId", batch).option("operatorId", store["operatorId"])
        if _TIMERS in store["operatorName"]:
            found = reader.option("readRegisteredTimers", True).load(checkpoint) if timers else None
            operator, due = TIMER, "expiration_timestamp_ms"
        elif _GROUPS in store["operatorName"]:
            state = reader.load(checkpoint)
            found, operator, due = state.where(F.col("value.timeoutTimestamp") > 0), TIMEOUT, "value.timeoutTimestamp"
        else:
            keys += _some(reader.option("storeName", store["stateStoreName"]).load(checkpoint)) if left else []
            continue
        if found is not None and (rows := found.count()):
            left[operator] = left.get(operator, 0) + rows
            keys += _some(found, F.concat(F.lit(" at "), F.timestamp_millis(due).cast("string")))
    return left, keys[:_KEYS]


def _some(state: DataFrame, *more: Column) -> list[str]:
    """Returns a few keys, each with more text, or none if Spark's reader does not know the operator's state."""
    try:
        return [str(row[0]) for row in state.select(F.concat(F.to_json("key"), *more)).limit(_KEYS).collect()]
    except spark_failures() as error:
        _LOG.debug("the state cannot be read: %s", error)
        return []
