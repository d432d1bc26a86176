"""A session on a single host has no defaults of YARN and MapReduce, but keeps what somebody has set."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.spark.hadoop_defaults import remove_service_defaults
from spark_jobs.runtime.spark.session import SHUFFLE_PARTITIONS, start_session
from tests.support.shared_application import SHARED_APPLICATION, session_jars

pytestmark = pytest.mark.spark

CONFIGURATION = "org.apache.hadoop.conf.Configuration"


def entries(spark: SparkSession, configuration: Any) -> dict[str, tuple[str, str]]:
    """Returns the value and the origin of each entry of a Hadoop configuration."""
    writer = java_class(spark, "java.io.StringWriter")()
    java_class(spark, CONFIGURATION).dumpConfiguration(configuration, writer)
    return {each["key"]: (each["value"], each["resource"]) for each in json.loads(str(writer.toString()))["properties"]}


def test_only_defaults_of_yarn_and_mapreduce_are_removed(spark: SparkSession) -> None:
    configuration = java_class(spark, CONFIGURATION)(True)
    before = entries(spark, configuration)
    configuration.set("yarn.resourcemanager.principal", "rm/_HOST@SHOP")
    configuration.set("yarn.resourcemanager.address", "rm:8032")
    configuration.set("mapreduce.job.reduces", "7")
    expected = entries(spark, configuration)
    remove_service_defaults(spark, configuration)
    after = entries(spark, configuration)
    assert after == {key: entry for key, entry in expected.items() if key in after}
    assert {"yarn.resourcemanager.principal", "yarn.resourcemanager.address", "mapreduce.job.reduces"} <= after.keys()
    removed = expected.keys() - after.keys()
    assert len(removed) > len(after)
    assert {expected[key][1] for key in removed} == {"yarn-default.xml", "mapred-default.xml"}
    committers = {key for key in before if key.startswith("mapreduce.outputcommitter.")}
    assert committers
    assert committers <= after.keys()


def test_a_session_on_one_host_starts_without_defaults_of_yarn(spark: SparkSession) -> None:
    java_class(spark, CONFIGURATION).reloadExistingConfigurations()
    context: Any = spark.sparkContext._jsc
    configuration = context.hadoopConfiguration()
    assert "yarn.resourcemanager.address" in entries(spark, configuration)
    kept = {key: str(spark.conf.get(key)) for key in (SHUFFLE_PARTITIONS, "spark.databricks.delta.snapshotPartitions")}
    start_session("tests", SHARED_APPLICATION | kept, jars=session_jars())  # the JVM and its session are those of all tests
    assert "yarn.resourcemanager.address" not in entries(spark, configuration)
