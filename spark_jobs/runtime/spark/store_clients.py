"""Spark's clients of stores."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark.session import hadoop_setting, hadoop_version, has_class
from spark_jobs.storage.azure_settings import ABFS_FILE_SYSTEM
from spark_jobs.storage.google_settings import GOOGLE_FILE_SYSTEM
from spark_jobs.storage.s3_settings import S3_FILE_SYSTEM

_CLIENTS = (
    ("s3", "S3", S3_FILE_SYSTEM, "org.apache.hadoop:hadoop-aws"),
    ("abfss", "Azure Data Lake Storage", ABFS_FILE_SYSTEM, "org.apache.hadoop:hadoop-azure"),
    ("gs", "Google Cloud Storage", GOOGLE_FILE_SYSTEM, "org.apache.hadoop:hadoop-gcp"),
)
"""The scheme of a store's URLs, its name, the class of Spark's client where Hadoop has none for the scheme, and the module that has one."""


def check_clients(spark: SparkSession, urls: Iterable[str]) -> None:
    """Refuses stores for which Spark has no client.

    Raises:
        MissingRequirementError: The client is missing. The error names its package.
    """
    schemes = {urlsplit(url).scheme for url in urls}
    for scheme, store, client, module in _CLIENTS:
        if scheme in schemes and not has_class(spark, hadoop_setting(spark, f"fs.{scheme}.impl") or client):
            package = f"{module}:{hadoop_version(spark)}"
            raise MissingRequirementError(
                f"Spark cannot reach {store}: it has no Hadoop client for it.",
                safe="Nothing was staged.",
                remedy=f"Give Spark the client: --packages {package}; for a cluster, spark-submit --packages {package}.",
                package=package,
            )
