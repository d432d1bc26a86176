"""The session that a source's function gets.

It also reads Delta tables as streams by path, while Spark accepts only names. An inferred schema is that of all files.
"""

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

_INFERENCE = "spark.sql.streaming.schemaInference"
_BY_PATH = re.compile(r"\s*delta\s*\.\s*`((?:[^`]|``)+)`\s*", re.IGNORECASE)


class SourceSession(SparkSession):
    """A session whose ``readStream.table("delta.`/path`")`` reads the table at that path. It shares everything else with ``session``."""

    session: SparkSession

    @classmethod
    def of(cls, session: SparkSession) -> "SourceSession":
        source = object.__new__(cls)
        source.__dict__.update(session.__dict__)
        source.session = session
        return source

    @property
    def readStream(self) -> DataStreamReader:
        reader = _PathReader(self.session.readStream)
        inferring = str(self.session.conf.get(_INFERENCE)).lower() == "true"
        return (
            reader.option("mergeSchema", True) if inferring else reader
        )  # Parquet and ORC would use the columns of any one file


class _PathReader(DataStreamReader):
    def __init__(self, reader: DataStreamReader) -> None:
        self.__dict__.update(reader.__dict__)

    def table(self, tableName: str) -> DataFrame:
        by_path = _BY_PATH.fullmatch(tableName)
        if by_path is None:
            return super().table(tableName)
        return self.format("delta").load(by_path[1].replace("``", "`"))
