"""The starting point of a source is computed once, at the first start. It stays valid even if that run has no input."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.ids import InputName, StageName
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.running import Running

pytestmark = pytest.mark.spark


class Table:
    def __init__(self, request: pytest.FixtureRequest, **options: Any) -> None:
        self.path, self.options = request.getfixturevalue("tmp_path") / "in", options

    def add(self, n: int) -> None:
        write_deltalake(str(self.path), pa.table({"n": pa.array([n], pa.int64())}), mode="append")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").options(**self.options).load(str(self.path))


class Topic:
    def __init__(self, request: pytest.FixtureRequest, **options: Any) -> None:
        self.kafka: KafkaBroker = request.getfixturevalue("kafka")
        self.name = f"start-{time.monotonic_ns()}"
        self.kafka.create_topic(self.name)
        self.options = {name: value.replace("TOPIC", self.name) for name, value in options.items()}

    def add(self, n: int) -> None:
        self.kafka.send(self.name, [str(n).encode()])

    def stream(self, spark: SparkSession) -> DataFrame:
        options = {key: value for key, value in kafka_options(self.kafka, self.name).items() if key != "startingOffsets"}
        frame = spark.readStream.format("kafka").options(**options | self.options).load()
        return frame.select(F.col("value").cast("string").cast("long").alias("n"))


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
LONG_AGO_MS = str(int(LONG_AGO.timestamp() * 1000))
Kind = Callable[[pytest.FixtureRequest], Any]
FROM_NOW_ON: dict[str, Kind] = {
    "delta, latest": lambda request: Table(request, startingVersion="latest"),
    "kafka, latest": lambda request: Topic(request, startingOffsets="latest"),
    "kafka, latest of one partition": lambda request: Topic(request, startingOffsets='{"TOPIC": {"0": -1}}'),
}
FROM_THE_BEGINNING: dict[str, Kind] = {
    "delta, a timestamp": lambda request: Table(request, startingTimestamp="2001-01-01"),
    "kafka, a timestamp": lambda request: Topic(request, startingTimestamp=LONG_AGO_MS),
    "kafka, timestamps": lambda request: Topic(request, startingOffsetsByTimestamp=f'{{"TOPIC": {{"0": {LONG_AGO_MS}}}}}'),
}
EVERY_DAY = ("delta, latest", "kafka, latest", "delta, a timestamp")


def of(kinds: dict[str, Kind]) -> list[Any]:
    return [pytest.param(kind, id=name, marks=() if name in EVERY_DAY else pytest.mark.nightly) for name, kind in kinds.items()]


def copying(site: Site, source: Any, *, bounded: bool = True) -> Pipeline:
    """Declares two stages that read the source separately. One keeps a state."""
    settings = CheckpointSettings(interval="1 hour" if bounded else "1 second")
    pipeline = Pipeline("copy", on_end="suspend" if bounded else "drain", checkpoint=settings)
    pipeline.source(name="rows", bounded=bounded)(lambda spark: source.stream(spark))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    counts = DeltaSink(str(site.tables / "counts"), mode="complete")
    pipeline.stage(name="counts", sink=counts)(lambda rows: rows.groupBy("n").count())
    return pipeline


def read(site: Site) -> tuple[list[int], list[int]]:
    tables = (public(site.tables / name, ["n"]).elements() for name in ("copy", "counts"))
    copy, counts = (sorted(row[0] for row in table) for table in tables)
    return copy, counts


@pytest.mark.parametrize("kind", of(FROM_NOW_ON))
def test_a_source_that_begins_now_reads_all_rows_after_the_first_start(
    site: Site, request: pytest.FixtureRequest, kind: Kind
) -> None:
    source = kind(request)
    pipeline = copying(site, source)
    source.add(1)
    source.add(2)
    site.run(pipeline)
    known = [each.model_dump(exclude={"seen"}) for each in site.manifest().sources[InputName("rows")]]
    source.add(3)
    site.run(pipeline)
    source.add(4)
    source.add(5)
    site.run(pipeline)
    assert read(site) == ([3, 4, 5], [3, 4, 5])
    assert [each.model_dump(exclude={"seen"}) for each in site.manifest().sources[InputName("rows")]] == known


@pytest.mark.parametrize("kind", of(FROM_THE_BEGINNING))
def test_a_starting_time_is_looked_up_only_at_the_first_start(site: Site, request: pytest.FixtureRequest, kind: Kind) -> None:
    source = kind(request)
    pipeline = copying(site, source)
    source.add(1)
    source.add(2)
    site.run(pipeline)
    source.add(3)
    site.run(pipeline)
    assert read(site) == ([1, 2, 3], [1, 2, 3])
    (known,) = site.manifest().sources[InputName("rows")]
    assert known.model_dump()["begins"] in (0, {source.__dict__.get("name"): {0: 0}})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(FROM_NOW_ON["kafka, latest"], id="kafka"),
        pytest.param(FROM_NOW_ON["delta, latest"], id="delta", marks=pytest.mark.nightly),
    ],
)
def test_a_running_pipeline_that_read_nothing_begins_where_it_was_first_started(
    site: Site, request: pytest.FixtureRequest, kind: Kind
) -> None:
    """The first attempt ends without a batch, and so without a checkpoint that could record the position."""
    source = kind(request)
    pipeline = copying(site, source, bounded=False)
    source.add(1)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("copy")].state is StageState.RUNNING)
    source.add(2)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 1)
        source.add(3)
        running.until(lambda: public_count(site.tables / "copy") == 2)
        running.until(lambda: public_count(site.tables / "counts") == 2)
    assert read(site) == ([2, 3], [2, 3])
