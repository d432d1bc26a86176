"""Replaces a bounded source that has ended, in a stage that goes on.

Spark's watermark is the least of those of all inputs, and an input without rows keeps what it had: a source that has ended would hold the
stage back for ever. So the stage is stopped between two batches and started again, on the same Spark checkpoint, with an *ended* source in
its place: it has the same columns, reads nothing, and says at each start once, by a row at the end of time, that it holds nothing back.

Its offsets begin after whatever the source before it has recorded, and keep that: ``{"ended": <the source's last offset>, "starts": 2}``.
"""

import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.runtime.spark.plan import operators_with_memory, streaming_leaves
from spark_jobs.runtime.spark.spark_facts import AVAILABLE_NOW, arrow_schema

FORMAT = "ended"
_END_US = 253_402_214_400_000_000
"""9999-12-31 in microseconds: later than any event, and a day before what a drain sets."""
_ENDED, _STARTS, _EVENT_TIME = "ended", "starts", "eventTime"

_sent_by_value: Any = register_pickle_by_value
_sent_by_value(sys.modules[__name__])  # the processes that run it need not have this package


def check_replaceable(source: InputName, frame: DataFrame) -> None:
    """Refuses a source that cannot be replaced after its end. Call it before its stage first starts.

    Raises:
        InvalidPipelineError: The source keeps state, or has a column that Arrow cannot carry.
    """
    memory = operators_with_memory(frame)
    if memory:
        raise InvalidPipelineError(
            f"Source '{source}' keeps state ({', '.join(memory)}), which would be lost when it ends and its stage continues.",
            safe="Nothing was staged.",
            remedy="Do that in a separate stage.",
            input=source,
            operators=memory,
        )
    try:
        arrow_schema(frame.schema)
    except PySparkTypeError as error:
        raise InvalidPipelineError(
            f"Source '{source}' has a column of a type that it could not keep when it ends and its stage continues: {error}",
            safe="Nothing was staged.",
            remedy="Cast the column to a type that Delta can store.",
            input=source,
        ) from error


def ended_frame(session: SparkSession, frame: DataFrame, event_time: str | None) -> DataFrame:
    """Returns the stream that replaces a source's frame after the source has ended.

    It has the frame's columns, and a line in Spark's offset log for each of the frame's streams. With an event time
    :func:`without_end_row` goes between ``withWatermark`` and everything else.

    Args:
        session: The stage's.
        frame: Result of the source's function. It is not read.
        event_time: The column of the watermark, a timestamp. Without one, the stream has no rows.
    """
    session.dataSource.register(EndedSource)
    reader = session.readStream.format(FORMAT).schema(frame.schema)
    if event_time is not None:
        reader = reader.option(_EVENT_TIME, event_time)
    streams = [reader.load() for _ in streaming_leaves(frame)]
    return reduce(DataFrame.union, streams)


def without_end_row(marked: DataFrame) -> DataFrame:
    """Drops the row at the end of time after the watermark has seen it.

    All rows of an ended source are dropped, by a condition that Spark takes for one that may differ each time: so neither it nor a
    condition of the user's, or of a join, is moved below the watermark, where it would drop the row too early.
    """
    return marked.where(F.spark_partition_id() < 0)


def is_ended(line: str) -> bool:
    """Returns True if a line of Spark's offset log is from an ended source."""
    return f'"{_STARTS}"' in line and _is_own(json.loads(line))


def _is_own(offset: Any) -> bool:
    return isinstance(offset, dict) and offset.keys() == {_ENDED, _STARTS}


class EndedSource(DataSource):
    """The data source that Spark loads."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def simpleStreamReader(self, schema: StructType) -> "EndedReader":
        return EndedReader(schema, self.options.get(_EVENT_TIME))


class EndedReader(SimpleDataSourceStreamReader, *AVAILABLE_NOW):  # type: ignore[misc]  # a base that not every Spark has
    """The reader of one start of a query. It gives one row per start: with a row at each read, a query would never be idle."""

    def __init__(self, schema: StructType, event_time: str | None) -> None:
        self._schema = schema
        self._event_time = event_time
        self._emitted = event_time is None

    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset of a source that has ended before it had one."""
        return {_ENDED: None, _STARTS: 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Does nothing: all rows come at once."""

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        taken_over: dict[str, Any] = start if _is_own(start) else {_ENDED: start, _STARTS: 0}
        if self._emitted:
            return iter([]), taken_over
        self._emitted = True
        return self._rows(), taken_over | {_STARTS: taken_over[_STARTS] + 1}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """Returns the rows of a batch that was planned before the query was started again."""
        return iter([]) if self._event_time is None else self._rows()

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the source has no data to delete."""

    def _rows(self) -> Iterator[Any]:
        schema = arrow_schema(self._schema)
        columns = []
        for field in schema:
            value = _END_US if field.name == self._event_time else None if field.nullable else _value(field.type)
            columns.append(pa.array([value], type=field.type))
        return iter([pa.RecordBatch.from_arrays(columns, schema=schema)])


def _value(kind: Any) -> Any:
    """Returns an arbitrary value of an Arrow type."""
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return []
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_binary(kind):
        return b""
    if pa.types.is_boolean(kind):
        return False
    return Decimal(0) if pa.types.is_decimal(kind) else 0
