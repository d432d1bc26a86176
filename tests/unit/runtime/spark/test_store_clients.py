"""A Spark without the client of a store is refused."""

from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark import store_clients
from spark_jobs.runtime.spark.store_clients import check_clients

SPARK = cast(SparkSession, None)
PLACES = {
    "hadoop-aws": "s3://lake/hourly",
    "hadoop-azure": "abfss://lake@flights.dfs.core.windows.net/hourly",
    "hadoop-gcp": "gs://lake/hourly",
}


@pytest.fixture(autouse=True)
def _hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_clients, "has_class", lambda *_: False)
    monkeypatch.setattr(store_clients, "hadoop_version", lambda _: "3.5.0")
    monkeypatch.setattr(store_clients, "hadoop_setting", lambda *_: None)


@pytest.mark.parametrize("package", PLACES)
def test_the_error_of_a_spark_without_a_client_for_a_store_names_the_package(package: str) -> None:
    with pytest.raises(MissingRequirementError, match="no Hadoop client") as refused:
        check_clients(SPARK, ["file:///home", PLACES[package]])
    assert f"--packages org.apache.hadoop:{package}:3.5.0" in str(refused.value.remedy)


def test_a_spark_without_clients_reaches_directories_and_hdfs() -> None:
    check_clients(SPARK, ["file:///home", "hdfs://name-node/hourly"])


def test_a_client_that_the_settings_of_hadoop_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_clients, "hadoop_setting", lambda _, name: f"clients.of.{name}")
    monkeypatch.setattr(store_clients, "has_class", lambda _, name: name == "clients.of.fs.gs.impl")
    check_clients(SPARK, [PLACES["hadoop-gcp"]])
    with pytest.raises(MissingRequirementError):
        check_clients(SPARK, [PLACES["hadoop-aws"]])
