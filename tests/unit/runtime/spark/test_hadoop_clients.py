"""A Spark without the client of a store is refused."""

from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark import hadoop_clients
from spark_jobs.runtime.spark.hadoop_clients import check_clients
from spark_jobs.runtime.staged.staged_rows import read_staged
from tests.support.object_store import object_store
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import HOURLY

SPARK = cast(SparkSession, None)
PLACES = {
    "hadoop-aws": "s3://lake/hourly",
    "hadoop-azure": "abfss://lake@flights.dfs.core.windows.net/hourly",
    "hadoop-gcp": "gs://lake/hourly",
}


@pytest.fixture(autouse=True)
def _hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop_clients, "has_class", lambda *_: False)
    monkeypatch.setattr(hadoop_clients, "hadoop_version", lambda _: "3.5.0")
    monkeypatch.setattr(hadoop_clients, "hadoop_setting", lambda *_: None)


@pytest.mark.parametrize("package", PLACES)
def test_the_error_of_a_spark_without_a_client_for_a_store_names_the_package(package: str) -> None:
    with pytest.raises(MissingRequirementError, match="no Hadoop client") as refused:
        check_clients(SPARK, ["file:///home", PLACES[package]])
    assert f"--packages org.apache.hadoop:{package}:3.5.0" in str(refused.value.remedy)


@pytest.mark.parametrize("package", PLACES)
def test_the_error_names_the_setting_for_airflow(package: str) -> None:
    with pytest.raises(MissingRequirementError) as refused:
        check_clients(SPARK, [PLACES[package]])
    assert (
        f"in the conf of the operator or of the connection, spark.jars.packages=org.apache.hadoop:{package}:3.5.0"
        in f"{refused.value.remedy}"
    )


@pytest.mark.parametrize(
    ("package", "hadoop", "remedy"),
    [
        ("hadoop-aws", "3.4.1", "Use Spark 4.1 or newer"),
        ("hadoop-gcp", "3.4.2", "Give Spark Google's connector"),
    ],
)
def test_the_error_names_no_package_that_spark_s_hadoop_cannot_use(
    monkeypatch: pytest.MonkeyPatch, package: str, hadoop: str, remedy: str
) -> None:
    monkeypatch.setattr(hadoop_clients, "hadoop_version", lambda _: hadoop)
    with pytest.raises(MissingRequirementError) as refused:
        check_clients(SPARK, [PLACES[package]])
    assert refused.value.remedy.startswith(remedy)
    assert package not in str(refused.value)


@pytest.mark.parametrize(
    ("package", "hadoop"), [("hadoop-aws", "3.4.2"), ("hadoop-azure", "3.4.1"), ("hadoop-aws", "3.4.10-amzn-1")]
)
def test_the_package_has_the_version_of_spark_s_hadoop(monkeypatch: pytest.MonkeyPatch, package: str, hadoop: str) -> None:
    monkeypatch.setattr(hadoop_clients, "hadoop_version", lambda _: hadoop)
    with pytest.raises(MissingRequirementError) as refused:
        check_clients(SPARK, [PLACES[package]])
    assert refused.value.evidence["package"] == f"org.apache.hadoop:{package}:{hadoop}"


def test_an_audit_whose_spark_has_no_client_for_the_staged_rows_gets_the_same_error(tmp_path: Path) -> None:
    with object_store() as store:
        pipeline = PipelineInS3(f"{store}/{uuid4()}", tmp_path)
        pipeline.make_table()
        pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
        with pytest.raises(MissingRequirementError, match="no Hadoop client") as refused:
            read_staged(SPARK, pipeline.files, HOURLY)
    assert "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0" in str(refused.value.remedy)


def test_a_spark_without_clients_reaches_directories_and_hdfs() -> None:
    check_clients(SPARK, ["file:///home", "hdfs://name-node/hourly"])


def test_a_client_that_the_settings_of_hadoop_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop_clients, "hadoop_setting", lambda _, name: f"clients.of.{name}")
    monkeypatch.setattr(hadoop_clients, "has_class", lambda _, name: name == "clients.of.fs.gs.impl")
    check_clients(SPARK, [PLACES["hadoop-gcp"]])
    with pytest.raises(MissingRequirementError):
        check_clients(SPARK, [PLACES["hadoop-aws"]])
