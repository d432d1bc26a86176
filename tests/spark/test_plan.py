"""The facts that the product reads from Spark's own plans. No query runs."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_jobs.runtime.spark import plan
from tests.spark.conftest import SharedInputs

pytestmark = pytest.mark.spark


@pytest.fixture
def events(spark: SparkSession, shared: SharedInputs) -> DataFrame:
    return spark.readStream.format("delta").load(str(shared.events))


@pytest.fixture
def marked(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute")


def test_a_stream_that_is_read_twice_is_one_stream(events: DataFrame) -> None:
    leaves = plan.streaming_leaves(events.union(events))
    assert len(leaves) == 2
    assert len({leaf.identity for leaf in leaves}) == 1


def test_two_reads_of_one_table_are_two_streams(spark: SparkSession, shared: SharedInputs) -> None:
    frames = [spark.readStream.format("delta").load(str(shared.events)) for _ in range(2)]
    assert len({plan.streaming_leaves(frame)[0].identity for frame in frames}) == 2


def test_a_watermark_below_other_operators_is_found(events: DataFrame, marked: DataFrame) -> None:
    assert plan.watermark_nodes(events) == []
    assert plan.watermark_nodes(marked.where("true").select("ts")) == plan.watermark_nodes(marked)


def test_a_renamed_column_a_window_and_its_time_carry_the_watermark(marked: DataFrame) -> None:
    counted = marked.groupBy(F.window("ts", "1 hour").alias("hour")).count()
    columns = plan.event_time_columns(counted.select(F.window_time("hour").alias("until"), "hour", "count"))
    assert [(column.name, column.timestamp, column.delay_ms) for column in columns] == [
        ("until", True, 60_000),
        ("hour", False, 60_000),
    ]
    assert [column.name for column in plan.event_time_columns(marked.select(F.col("ts").alias("then")))] == ["then"]


def test_the_end_of_a_window_carries_no_watermark(marked: DataFrame) -> None:
    counted = marked.groupBy(F.window("ts", "1 hour").alias("hour")).count()
    assert plan.event_time_columns(counted.select(F.col("hour.end").alias("until"))) == []


def test_a_deduplication_without_event_time_keeps_its_state(marked: DataFrame) -> None:
    assert plan.undrained_operators(marked.dropDuplicates(["region"])) == ["dropDuplicates without an event-time column"]
    assert plan.undrained_operators(marked.dropDuplicates(["region", "ts"])) == []
    assert plan.undrained_operators(marked.dropDuplicatesWithinWatermark(["region"])) == []


def _passed_on(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield from frames


@pytest.mark.parametrize(("timeout", "waits"), [("ProcessingTimeTimeout", True), ("EventTimeTimeout", False)])
def test_a_timeout_by_the_clock_is_found(marked: DataFrame, timeout: str, waits: bool) -> None:
    kept = marked.groupBy("region").applyInPandasWithState(
        _passed_on, "region string", "n long", "append", getattr(GroupStateTimeout, timeout)
    )
    assert bool(plan.processing_time_operators(kept)) is waits
    assert not plan.has_timers(kept)


class _Silent(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from ()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("mode", "waits"), [("ProcessingTime", True), ("EventTime", False)])
def test_a_processor_that_can_set_timers_is_found(marked: DataFrame, mode: str, waits: bool) -> None:
    processed = marked.groupBy("region").transformWithStateInPandas(_Silent(), "region string", "append", mode)
    assert plan.has_timers(processed)
    assert bool(plan.processing_time_operators(processed)) is waits


def _remembering() -> dict[str, Callable[[DataFrame], DataFrame]]:
    return {
        "Aggregate": lambda marked: marked.groupBy(F.window("ts", "1 hour")).count(),
        "Deduplicate": lambda marked: marked.dropDuplicates(["id"]),
        "DeduplicateWithinWatermark": lambda marked: marked.dropDuplicatesWithinWatermark(["id"]),
        "Distinct": lambda marked: marked.sparkSession.sql("SELECT DISTINCT key FROM {rows}", rows=marked),
        "FlatMapGroupsInPandasWithState": lambda marked: marked.groupBy("region").applyInPandasWithState(
            _passed_on, "region string", "n long", "append", GroupStateTimeout.EventTimeTimeout
        ),
        "GlobalLimit": lambda marked: marked.limit(5),
        "Join": lambda marked: marked.join(marked.select("id").withColumnRenamed("id", "other"), F.expr("id = other")),
        "TransformWithStateInPySpark": lambda marked: marked.groupBy("region").transformWithStateInPandas(
            _Silent(), "region string", "append", "EventTime"
        ),
    }


@pytest.mark.parametrize("operator", _remembering())
def test_an_operator_that_depends_on_earlier_rows_is_found(spark: SparkSession, marked: DataFrame, operator: str) -> None:
    assert operator in plan.operators_with_memory(_remembering()[operator](marked).where("true"))


def test_operators_that_look_at_one_row_at_a_time_have_no_memory(
    spark: SparkSession, shared: SharedInputs, marked: DataFrame
) -> None:
    places = spark.read.format("delta").load(str(shared.places)).groupBy("key").agg(F.first("place").alias("place")).distinct()
    frame = (
        marked.join(places.limit(10), "key", "left").where("value > 0").select("key", "place", F.explode(F.array("value", "id")))
    )
    assert plan.operators_with_memory(frame.union(marked.selectExpr("key", "key", "id"))) == []
