"""Runs a Spark Declarative Pipelines project with Spark's own command, ``spark-pipelines run``, into Delta tables."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from spark_jobs.runtime.spark.delta_jars import DeltaJars


def catalog_settings(directory: Path) -> dict[str, str]:
    """Returns the settings of a permanent catalog whose tables are in ``directory/warehouse``."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory / 'metastore'};create=true",
        "spark.hadoop.hive.exec.scratchdir": str(directory / "scratch"),
    }


def run_spark_pipelines(
    entry: Path, directory: Path, settings: Mapping[str, str], java_options: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the command, with tables in ``directory/warehouse``.

    Spark Connect refuses static settings, and ``--conf`` comes too late for the catalog. So all settings are properties of the JVM, and
    Delta's jars, which a session of this user has found before, are on its class path.

    Args:
        entry: The project's ``spark-pipeline.yml``.
        directory: The directory of the catalog and its tables.
        settings: Spark's settings.
        java_options: Other options of its JVMs.
    """
    properties = {
        **settings,
        **catalog_settings(directory),
        "spark.sql.sources.default": "delta",  # with format="delta" a second run fails: DELTA_CANNOT_CHANGE_PROVIDER
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    properties.pop("spark.master", None)  # refused: the option is --remote
    jars = DeltaJars({}, ()).setting() or ""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": " ".join([java_options, *(f'"-D{key}={value}"' for key, value in properties.items())]),
        "SPARK_DIST_CLASSPATH": jars.replace(",", os.pathsep),
    }
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", str(entry), "--remote", "local[2]"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=directory)
