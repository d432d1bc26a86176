"""Spark's clients of stores."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark.session import hadoop_version, has_class
from spark_jobs.storage.object_store_settings import S3_FILE_SYSTEM


def check_clients(spark: SparkSession, urls: Iterable[str]) -> None:
    """Refuses stores for which Spark has no client.

    Raises:
        MissingRequirementError: The client is missing. The error names its package.
    """
    if any(urlsplit(url).scheme == "s3" for url in urls) and not has_class(spark, S3_FILE_SYSTEM):
        package = f"org.apache.hadoop:hadoop-aws:{hadoop_version(spark)}"
        raise MissingRequirementError(
            "Spark cannot reach S3: it has no Hadoop client for it.",
            safe="Nothing was staged.",
            remedy=f"Give Spark the client: --packages {package}; for a cluster, spark-submit --packages {package}.",
            package=package,
        )
