"""One Spark session for all tests of a process, and inputs that they share."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, StartResponse
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.support.kafka_broker import SOURCE_JARS, KafkaBroker, jars, kafka_broker
from tests.support.permissions import obey_permissions
from tests.support.short_jvm import COMPILED, FEW_ROWS, SHARED_BY_MANY

HIDDEN_SETTING = {"spark.executorEnv.SHOP_LOGIN": "open-sesame"}
"""A setting whose name is not on the allow-list of those that may be seen."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = (
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "3g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2" if COMPILED else "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else VACUUM takes 10,000 tasks to list files
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        }
        | HIDDEN_SETTING
        | FEW_ROWS
        | SHARED_BY_MANY
    )
    obey_permissions()
    session = start_session("tests", conf, jars=jars(SOURCE_JARS))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@dataclass(frozen=True)
class SharedInputs:
    """Where the rows are. Read only."""

    events: Path
    """Delta, partitioned, several versions."""
    payments: Path
    """A directory of Parquet files."""
    places: Path
    """Delta."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedInputs:
    root = tmp_path_factory.mktemp("inputs with a space")
    return SharedInputs(
        events=inputs.write_versions(root / "events", inputs.events(), 4, partition_by=["region"]),
        payments=inputs.write_parquet(root / "payments", inputs.payments(), 3),
        places=inputs.write_versions(root / "places", inputs.places(), 1),
    )


@pytest.fixture(scope="session")
def views(spark: SparkSession, shared: SharedInputs) -> SparkSession:
    """A session in which batch SQL finds the shared inputs by name."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.read.format("delta").load(str(shared.events)).createOrReplaceTempView("events")
    session.read.parquet(str(shared.payments)).createOrReplaceTempView("payments")
    session.read.format("delta").load(str(shared.places)).createOrReplaceTempView("places")
    return session


class Site:
    """A home and the directory of its tables."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.home = root / "home"
        self.tables = root / "tables with a space"

    def run(self, pipeline: Pipeline, **options: Any) -> StartResponse:
        return pipeline.run(spark=self.spark, home=self.home, **options)

    def manifest(self, checkpoint: int | None = None) -> Manifest:
        store = CheckpointStore(open_files(str(self.home)))
        head = store.head()
        assert head is not None
        return head if checkpoint is None else store.manifest(type(head.checkpoint)(checkpoint))

    def checkpoints(self) -> list[int]:
        return list(CheckpointStore(open_files(str(self.home))).ids())


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path) -> Site:
    return Site(spark, tmp_path)
