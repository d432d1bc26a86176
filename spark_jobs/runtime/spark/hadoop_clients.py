"""Spark's clients of stores."""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark.session import hadoop_setting, hadoop_version, has_class
from spark_jobs.storage.azure_settings import ABFS_FILE_SYSTEM
from spark_jobs.storage.google_settings import GOOGLE_FILE_SYSTEM
from spark_jobs.storage.s3_settings import S3_FILE_SYSTEM


class _Client(NamedTuple):
    """Spark's client of one kind of store."""

    scheme: str
    store: str
    file_system: str
    """The class of the client if no setting of Hadoop names one."""
    module: str
    """The module of Hadoop that has the client."""
    since: tuple[int, ...]
    """The oldest Hadoop whose module can be used."""
    older: str
    """The remedy with an older Hadoop."""


_CLIENTS = (
    _Client(
        "s3",
        "S3",
        S3_FILE_SYSTEM,
        "org.apache.hadoop:hadoop-aws",
        (3, 4, 2),
        "Use Spark 4.1 or newer: before Hadoop 3.4.2 the client of S3 cannot create a file conditionally.",
    ),
    _Client("abfss", "Azure Data Lake Storage", ABFS_FILE_SYSTEM, "org.apache.hadoop:hadoop-azure", (), ""),
    _Client(
        "gs",
        "Google Cloud Storage",
        GOOGLE_FILE_SYSTEM,
        "org.apache.hadoop:hadoop-gcp",
        (3, 5),
        f"Give Spark Google's connector, and set spark.hadoop.fs.gs.impl={GOOGLE_FILE_SYSTEM}. Hadoop has a client of its own from 3.5 on, "
        "which is the Hadoop of Spark 4.2.",
    ),
)


def check_clients(spark: SparkSession, urls: Iterable[str]) -> None:
    """Refuses stores for which Spark has no client.

    Raises:
        MissingRequirementError: The client is missing. The error names the package that has it, if one fits Spark's Hadoop.
    """
    schemes = {urlsplit(url).scheme for url in urls}
    for client in _CLIENTS:
        if client.scheme in schemes and not has_class(
            spark, hadoop_setting(spark, f"fs.{client.scheme}.impl") or client.file_system
        ):
            raise _without_client(client, hadoop_version(spark))


def _without_client(client: _Client, hadoop: str) -> MissingRequirementError:
    package = f"{client.module}:{hadoop}"
    fits = tuple(int(number) for number in re.findall(r"\d+", hadoop)[:3]) >= client.since
    return MissingRequirementError(
        f"Spark cannot reach {client.store}: it has no Hadoop client for it.",
        exists=f"Spark has Hadoop {hadoop}.",
        safe="No table was changed.",
        remedy=f"Give Spark the client: in a terminal --packages {package}, also to spark-submit; in a session of your own, and in Airflow "
        f"in the conf of the operator or of the connection, spark.jars.packages={package}."
        if fits
        else client.older,
        **({"package": package} if fits else {}),
    )
