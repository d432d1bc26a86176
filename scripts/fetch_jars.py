"""Starts one local Spark session with Delta, so that its jars are in Ivy's cache, and lists them in the file that is named."""

import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from scripts.jar_hashes import write_list


def main(stamp: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    jars = [unquote(urlsplit(url).path) for url in spark.sparkContext.getConf().get("spark.jars", "").split(",") if url]
    spark.stop()
    if not jars:
        sys.exit("Spark started without Delta's jars.")
    write_list(stamp, jars)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
