"""The session of a script that knows nothing of this project: Spark with Delta, and settings."""

import os
import sys
from collections.abc import Mapping

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession


def plain_session(settings: Mapping[str, str]) -> SparkSession:
    """Starts one, as anybody would write it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.Builder()
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    return configure_spark_with_delta_pip(builder).getOrCreate()
