"""Publications that need Spark are refused without it before any write. The command line starts Spark and publishes them."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import SparkRequiredError
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, public_count
from tests.support.short_jvm import FEW_ROWS
from tests.support.table_features import READ_BY_ICEBERG

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


def _staged(site: Site) -> None:
    """Stages rows for two sinks that delta-rs could publish, one of them with a merge, and for a table that Iceberg reads."""
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": range(20), "value": range(20)}))
    pipeline = Pipeline("three")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "events"))

    sinks = {
        "plain": DeltaSink(str(site.tables / "plain")),
        "iceberg": DeltaSink(str(site.tables / "iceberg"), table_properties=READ_BY_ICEBERG),
        "merged": DeltaSink(str(site.tables / "merged"), mode="upsert", keys=["id"]),
    }
    for name, sink in sinks.items():
        pipeline.stage(sink=sink, name=name)(lambda events: events)
    site.run(pipeline, publish="external")


def test_a_checkpoint_that_needs_spark_is_published_once_with_spark_and_not_without(site: Site) -> None:
    _staged(site)
    with pytest.raises(SparkRequiredError, match="Sink iceberg is published by Spark"):
        publish(open_files(str(site.home)))
    tables = ("plain", "iceberg", "merged")
    assert [public_count(site.tables / name) for name in tables] == [0, 0, 0]
    conf = [option for key, value in FEW_ROWS.items() for option in ("--conf", f"{key}={value}")]
    command = [sys.executable, "-m", "spark_jobs", "publish", "--home", str(site.home), *conf, "--conf", "spark.master=local[2]"]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    expected = {(number, number): 1 for number in range(20)}
    for name in tables:
        assert answer(site.spark.read.format("delta").load(str(site.tables / name)).select("id", "value")) == expected
