"""The same work as ``cold_pipeline.py``, in a script as anybody would write it: a session with Delta, then a query for each stage."""

import os
import sys
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from benchmarks.site import COLD_SETTINGS, plain_query


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.Builder()
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    for key, value in COLD_SETTINGS.items():
        builder = builder.config(key, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    output, read = Path(os.environ["COLD_OUTPUT"]), os.environ["COLD_INPUT"]
    for number in range(int(os.environ["COLD_STAGES"])):
        table = str(output / f"stage_{number}")
        plain_query(spark, read, table, str(output / f"checkpoint_{number}")).awaitTermination()
        read = table
    spark.stop()


if __name__ == "__main__":
    main()
