"""A JVM of the tests maps the class archive that ``spark-jobs warm-up`` has made. ``make test`` runs the warm-up first."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.runtime.spark.class_archive import archive_path
from spark_jobs.runtime.spark.session import check_java

pytestmark = pytest.mark.spark


def test_the_jvm_of_a_session_maps_the_class_archive(spark: SparkSession) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    assert str(archive_path(check_java())) in Path(f"/proc/{jvm}/maps").read_text()
