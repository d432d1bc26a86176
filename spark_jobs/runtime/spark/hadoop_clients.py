"""Hadoop's clients of object stores, which Spark uses."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.runtime.spark.session import hadoop_setting, hadoop_version, has_class
from spark_jobs.storage.object_store_kinds import KINDS
from spark_jobs.storage.object_store_settings import ObjectStoreSettings


def check_clients(spark: SparkSession, urls: Iterable[str]) -> None:
    """Refuses stores for which Spark has no client.

    Raises:
        MissingRequirementError: The client is missing. The error names the package that has it, if one fits Spark's Hadoop.
    """
    schemes = {urlsplit(url).scheme for url in urls}
    for kind in KINDS:
        if kind.SCHEME in schemes and not has_class(
            spark, hadoop_setting(spark, f"fs.{kind.SCHEME}.impl") or kind.HADOOP_CLIENT.file_system
        ):
            raise _without_client(kind, hadoop_version(spark))


def _without_client(kind: type[ObjectStoreSettings], hadoop: str) -> MissingRequirementError:
    client = kind.HADOOP_CLIENT
    package = f"{client.module}:{hadoop}"
    fits = tuple(int(number) for number in re.findall(r"\d+", hadoop)[:3]) >= client.since
    return MissingRequirementError(
        f"Spark cannot reach {kind.NAME}: it has no Hadoop client for it.",
        exists=f"Spark has Hadoop {hadoop}.",
        safe="No table was changed.",
        remedy=f"Give Spark the client: in a terminal --packages {package}, also to spark-submit; in a session of your own, and in Airflow "
        f"in the conf of the operator or of the connection, spark.jars.packages={package}."
        if fits
        else client.older,
        **({"package": package} if fits else {}),
    )
