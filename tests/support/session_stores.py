"""Stores for a Spark session that started before their servers."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from spark_jobs.storage.azure_settings import AzureSettings
from spark_jobs.storage.s3_settings import S3Settings

_CREDENTIALS = {
    "s3": {"fs.s3a.access.key": "AWS_ACCESS_KEY_ID", "fs.s3a.secret.key": "AWS_SECRET_ACCESS_KEY"},
    "abfss": {"fs.azure.account.key": "AZURE_STORAGE_ACCOUNT_KEY"},
}
"""By scheme the settings of Hadoop's client for credentials, and their variables. The JVM cannot see variables that are set later."""


@contextmanager
def store_of(spark: Any, server: AbstractContextManager[str]) -> Iterator[str]:
    """Starts a server, and gives the session the settings of its store. Yields the place's URL."""
    with server as place:
        scheme = place.partition(":")[0]
        settings = (S3Settings if scheme == "s3" else AzureSettings).from_environment(os.environ).for_spark({})
        settings |= {name: os.environ[variable] for name, variable in _CREDENTIALS[scheme].items()}
        for name, value in settings.items():
            spark.sparkContext._jsc.hadoopConfiguration().set(name.removeprefix("spark.hadoop."), value)
        yield place
