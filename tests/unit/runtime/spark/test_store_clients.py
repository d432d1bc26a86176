"""A Spark without the client of a store is refused."""

from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark import store_clients
from spark_jobs.runtime.spark.store_clients import check_clients

SPARK = cast(SparkSession, None)


def test_the_error_of_a_spark_without_a_client_for_s3_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_clients, "has_class", lambda *_: False)
    monkeypatch.setattr(store_clients, "hadoop_version", lambda _: "3.5.0")
    with pytest.raises(MissingRequirementError, match="no Hadoop client") as refused:
        check_clients(SPARK, ["file:///home", "s3://lake/hourly"])
    assert "--packages org.apache.hadoop:hadoop-aws:3.5.0" in str(refused.value.remedy)
    check_clients(SPARK, ["file:///home", "hdfs://name-node/hourly"])
