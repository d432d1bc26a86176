"""The query of ``state_sizes.py`` in a script as anybody would write it."""

import os
import sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from benchmarks.site import COLD_SETTINGS
from benchmarks.state_sizes import kept
from spark_jobs.runtime.session import REQUIRED_SETTINGS


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.Builder()
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    for key, value in {**COLD_SETTINGS, **REQUIRED_SETTINGS}.items():
        builder = builder.config(key, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    rows = spark.readStream.format("delta").load(os.environ["LIVE_INPUT"]).withWatermark("at", "1 minute")
    writer = kept(rows).writeStream.format("delta").option("checkpointLocation", os.environ["LIVE_CHECKPOINT"])
    writer.start(os.environ["LIVE_OUTPUT"]).awaitTermination()


if __name__ == "__main__":
    main()
