"""The session that a source's function gets.

It also reads Delta tables as streams by path, while Spark accepts only names. It infers schemas from all files of a folder.
"""

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

_INFERENCE = "spark.sql.streaming.schemaInference"
_BY_PATH = re.compile(r"\s*delta\s*\.\s*`((?:[^`]|``)+)`\s*", re.IGNORECASE)


AsLoaded = Callable[[DataFrame], DataFrame]
"""Returns the frame that a source's function gets for a stream that it has loaded."""


class SourceSession(SparkSession):
    """A session whose ``readStream.table("delta.`/path`")`` reads the table at that path. It shares everything else with ``session``."""

    session: SparkSession
    loaded: AsLoaded | None

    @classmethod
    def of(cls, session: SparkSession, loaded: AsLoaded | None = None) -> "SourceSession":
        source = object.__new__(cls)
        source.__dict__.update(session.__dict__)
        source.session, source.loaded = session, loaded
        return source

    @property
    def readStream(self) -> DataStreamReader:
        reader = _PathReader(self.session.readStream, self.loaded)
        inferring = str(self.session.conf.get(_INFERENCE)).lower() == "true"
        return (
            reader.option("mergeSchema", True) if inferring else reader
        )  # otherwise Parquet and ORC infer the columns from a single file


class _PathReader(DataStreamReader):
    def __init__(self, reader: DataStreamReader, loaded: AsLoaded | None) -> None:
        self.__dict__.update(reader.__dict__)
        self._loaded = loaded

    def _df(self, jdf: Any) -> DataFrame:
        frame = super()._df(jdf)
        return frame if self._loaded is None else self._loaded(frame)

    def table(self, tableName: str) -> DataFrame:
        by_path = _BY_PATH.fullmatch(tableName)
        if by_path is None:
            return super().table(tableName)
        return self.format("delta").load(by_path[1].replace("``", "`"))
