"""A Python data source for the tests: it streams the lines of a file to which a test can add rows at any time.

Without recorded offsets a query begins at the first line. A restart goes on after the last entry of the offset log. The source never ends.
With ``Trigger.AvailableNow`` it reads the lines that exist when a query starts.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType, TimestampType

_sent_by_value: Any = register_pickle_by_value
_sent_by_value(sys.modules[__name__])  # Python workers do not find the tests


def add_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Adds rows. Times are ISO texts with a zone."""
    with path.open("a") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows))


def lines_stream(session: SparkSession, path: Path, schema: str, rows_per_batch: int | None = None) -> DataFrame:
    """Returns the stream of a file's rows. The file may be created later.

    Args:
        session: The session that registers the source.
        path: The file.
        schema: The schema as DDL.
        rows_per_batch: The largest number of rows in a batch.
    """
    session.dataSource.register(LinesSource)
    reader = session.readStream.format(LinesSource.name()).schema(schema).option("path", str(path))
    return (reader.option("rowsPerBatch", rows_per_batch) if rows_per_batch else reader).load()


class LinesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "test_lines"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LinesReader(schema, self.options["path"], int(self.options.get("rowsPerBatch", 0)))


class LinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, path: str, rows_per_batch: int) -> None:
        self._times = [isinstance(field.dataType, TimestampType) for field in schema]
        self._path, self._rows_per_batch = path, rows_per_batch
        self._available: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"lines": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_per_batch) if self._rows_per_batch else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available = len(self._lines())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = len(self._lines()) if self._available is None else self._available
        return {"lines": min(end, start["lines"] + limit.max_rows) if isinstance(limit, ReadMaxRows) else end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((start["lines"], end["lines"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        begin, end = partition.value
        for line in self._lines()[begin:end]:
            row = zip(json.loads(line), self._times, strict=True)
            yield tuple(datetime.fromisoformat(value) if time and value else value for value, time in row)

    def _lines(self) -> list[str]:
        """Returns the lines that are complete."""
        path = Path(self._path)
        return path.read_text().split("\n")[:-1] if path.exists() else []
