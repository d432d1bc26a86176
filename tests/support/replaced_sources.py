"""Sources that another one replaces at the same place."""

import itertools
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kafka_broker import KafkaBroker, kafka_options

_TOPICS = itertools.count()


class Table:
    """A Delta table that is dropped and loaded again at the same path."""

    other = "reads another Delta table"

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.root: Path = request.getfixturevalue("tmp_path")
        self.path = self.root / "in"

    def add(self, *numbers: int) -> None:
        write_deltalake(str(self.path), pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(self.path))

    def make_anew(self) -> None:
        shutil.rmtree(self.path)

    def move(self) -> None:
        self.path = self.path.rename(self.root / "moved")


class Topic:
    """A Kafka topic that is deleted and created again under its name."""

    other = "reads topics that were deleted and created again"

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.kafka: KafkaBroker = request.getfixturevalue("kafka")
        self.name = f"identity-{next(_TOPICS)}"
        self.kafka.create_topic(self.name, 2)

    def add(self, *numbers: int) -> None:
        self.kafka.send(self.name, [str(n).encode() for n in numbers], numbers[0] % 2)

    def stream(self, spark: SparkSession) -> DataFrame:
        frame = spark.readStream.format("kafka").options(**kafka_options(self.kafka, self.name)).load()
        return frame.select(F.col("value").cast("string").cast("long").alias("n"))

    def make_anew(self) -> None:
        self.kafka.delete_topic(self.name)
        self.kafka.create_topic(self.name, 2)
