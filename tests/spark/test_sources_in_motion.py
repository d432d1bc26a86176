"""A change of a source while a driver runs is found before any changed row is public."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import RejectedError, StreamPipelineError
from spark_jobs.protocol.steps import observed_by
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.kafka_broker import kafka_options
from tests.support.meanwhile import Meanwhile
from tests.support.replaced_sources import Table as AnyTable
from tests.support.replaced_sources import Topic as AnyTopic

pytestmark = pytest.mark.spark


class Table(AnyTable):
    """A Delta table, one version per batch."""

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(self.path))


class Topic(AnyTopic):
    """A Kafka topic, two records per batch."""

    def stream(self, spark: SparkSession) -> DataFrame:
        small = {
            "kafka.max.partition.fetch.bytes": 1,
            "kafka.fetch.max.bytes": 1,
        }  # otherwise all records come with the first fetch
        options = kafka_options(self.kafka, self.name, maxOffsetsPerTrigger=2, **small)
        frame = spark.readStream.format("kafka").options(**options).load()
        return frame.select(F.col("value").cast("string").cast("long").alias("n"))


def copying(site: Site, source: Any) -> Pipeline:
    pipeline = Pipeline("copy", on_end="suspend")
    pipeline.source(name="rows", bounded=True)(lambda spark: source.stream(spark))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    return pipeline


def copied(site: Site) -> list[int]:
    return sorted(row[0] for row in public(site.tables / "copy").elements())


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        pytest.param(Table, 12, id="a longer table"),
        pytest.param(Topic, 1, id="a shorter topic"),
        pytest.param(Table, 1, id="a shorter table", marks=pytest.mark.nightly),
        pytest.param(Topic, 12, id="a longer topic", marks=pytest.mark.nightly),
    ],
)
def test_a_source_that_is_replaced_in_the_middle_of_a_round_is_noticed_before_a_new_row_is_public(
    site: Site, request: pytest.FixtureRequest, kind: Callable[[pytest.FixtureRequest], Any], more: int
) -> None:
    source = kind(request)
    for n in range(6):
        source.add(n)
    pipeline = copying(site, source)

    def make_anew() -> None:
        source.make_anew()
        for n in range(100, 100 + more):
            source.add(n)

    with observed_by(Meanwhile(make_anew)), pytest.raises(StreamPipelineError):
        site.run(pipeline, run_id="day 1")
    assert not public_count(site.tables / "copy")
    with pytest.raises(RejectedError, match=f"Source 'rows' {source.other}"):
        site.run(pipeline, run_id="day 1")
    site.run(pipeline, run_id="day 1", new_sources=["rows"])
    assert copied(site) == list(range(100, 100 + more))


def test_records_that_expire_in_the_middle_of_a_round_fail_the_run_until_the_loss_is_accepted(
    site: Site, request: pytest.FixtureRequest
) -> None:
    source = Topic(request)
    for n in range(8):
        source.add(2 * n)  # all into one partition
    pipeline = copying(site, source)
    with observed_by(Meanwhile(lambda: source.kafka.expire(source.name, 0, before=6))), pytest.raises(StreamPipelineError):
        site.run(pipeline, run_id="day 1")
    assert not public_count(site.tables / "copy")
    with pytest.raises(RejectedError, match="has lost rows that stage 'copy' has not read: 4 offsets"):
        site.run(pipeline, run_id="day 1")
    site.run(pipeline, run_id="day 1", accept_data_loss=["rows"])
    assert copied(site) == [0, 2, 12, 14]
