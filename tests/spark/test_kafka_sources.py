"""Bounded Kafka sources end exactly at the offsets pinned at the start of their round, in each partition."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_jobs import DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.api.load import load_pipeline
from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import KafkaPin
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.pages import ROOT, files

pytestmark = pytest.mark.spark


def _values(begin: int, end: int) -> list[bytes]:
    return [str(number).encode() for number in range(begin, end)]


def _numbers(*ranges: range) -> Counter[tuple[Any, ...]]:
    return Counter((number,) for numbers in ranges for number in numbers)


class Copy:
    """A pipeline that copies the numbers in Kafka's values."""

    def __init__(self, site: Site, options: dict[str, str], fails_at: int = -1) -> None:
        self.table, self.flag = site.tables / "copy", site.home.parent / "fail"
        self.pipeline, self.site = Pipeline("kafka", on_end="suspend"), site
        flag = str(self.flag)

        def fail(number: int) -> int:
            if number == fails_at and Path(flag).exists():
                raise ValueError("failed as told")
            return number

        @self.pipeline.source(bounded=True)
        def numbers(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("kafka").options(**options).load()

        @self.pipeline.stage(sink=DeltaSink(str(self.table)))
        def copy(numbers: DataFrame) -> DataFrame:
            number = F.col("value").cast("string").cast("long")
            return numbers.select(F.udf(fail, "long", useArrow=False)(number).alias("number"))

    def run(self, run_id: str) -> Counter[tuple[Any, ...]]:
        self.site.run(self.pipeline, run_id=run_id)
        return public(self.table)

    def pin(self) -> KafkaPin:
        (pin,) = self.site.manifest().inputs[InputName("numbers")]
        assert isinstance(pin, KafkaPin)
        return pin


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list with one entry for each start of a query so far."""
    found: list[str] = []
    start = DataStreamWriter.start

    def counted(self: DataStreamWriter, *arguments: Any, **options: Any) -> Any:
        found.append("started")
        return start(self, *arguments, **options)

    monkeypatch.setattr(DataStreamWriter, "start", counted)
    return found


@pytest.mark.nightly
def test_records_that_arrive_while_a_round_is_interrupted_join_the_next_one(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, starts: list[str]
) -> None:
    """One partition ends early, one never has a record, one is added, and all of them grow while the round is interrupted."""
    kafka.create_topic("interrupted", 3)
    kafka.send("interrupted", _values(0, 60), 0)
    kafka.send("interrupted", _values(100, 104), 1)
    copied = Copy(Site(spark, tmp_path), kafka_options(kafka, "interrupted", maxOffsetsPerTrigger=8), fails_at=20)
    copied.flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        copied.run("first")
    copied.flag.unlink()
    kafka.add_partitions("interrupted", 4)
    for partition in range(4):
        kafka.send("interrupted", _values(1_000 * (partition + 1), 1_000 * (partition + 1) + 50), partition)
    starts.clear()
    assert copied.run("first") == _numbers(range(60), range(100, 104))
    assert copied.pin().topics == {"interrupted": {0: 60, 1: 4, 2: 0}}
    batches = len(list(copied.site.home.glob("work/*/stages/copy/checkpoint/commits/[0-9]*")))
    assert batches > 6
    assert len(starts) <= 3, f"{batches} batches took {len(starts)} starts"
    later = [range(1_000 * number, 1_000 * number + 50) for number in range(1, 5)]
    assert copied.run("second") == _numbers(range(60), range(100, 104), *later)
    assert copied.pin().topics == {"interrupted": {0: 110, 1: 54, 2: 50, 3: 50}}


@pytest.mark.nightly
def test_a_topic_that_is_compacted_meanwhile_gives_the_newest_record_of_each_key(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    compact = {
        "cleanup_policy": "compact",
        "segment_ms": "100",
        "max_compaction_lag_ms": "100",
        "min_cleanable_dirty_ratio": "0.01",
    }
    kafka.create_topic("compacted", 1, **compact)
    for number in range(40):
        kafka.send("compacted", _values(number, number + 1), key=str(number % 5).encode())
    copied = Copy(Site(spark, tmp_path), kafka_options(kafka, "compacted", maxOffsetsPerTrigger=8), fails_at=36)
    copied.flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        copied.run("first")
    copied.flag.unlink()
    deadline_s = time.monotonic() + 60
    kafka.send("compacted", _values(1000, 1001), key=b"other")
    while spark.read.format("kafka").options(**kafka_options(kafka, "compacted")).load().where("offset < 35").count():
        assert time.monotonic() < deadline_s
        kafka.send("compacted", _values(2000, 2001), key=b"new")  # only older segments are compacted
    found = copied.run("first")
    assert _numbers(range(35, 40)) <= found <= _numbers(range(40))
    assert found + _numbers(range(1000, 1001)) <= copied.run("second")


@pytest.mark.parametrize(
    ("isolation", "aborted"),
    [("read_committed", []), pytest.param("read_uncommitted", [range(20, 25)], marks=pytest.mark.nightly)],
)
def test_a_round_ends_at_an_offset_that_no_record_has(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, isolation: str, aborted: list[range]
) -> None:
    """The end of a transaction takes an offset. Here it is the last one before the pin."""
    topic = f"transactions_{isolation}"
    kafka.create_topic(topic)
    kafka.send_in_transaction(topic, _values(0, 10))
    kafka.send_in_transaction(topic, _values(20, 25), commit=False)
    copied = Copy(
        Site(spark, tmp_path), kafka_options(kafka, topic, maxOffsetsPerTrigger=4, **{"kafka.isolation.level": isolation})
    )
    assert copied.run("first") == _numbers(range(10), *aborted)
    assert copied.pin().topics == {topic: {0: 17}} == {topic: kafka.end_offsets(topic)}
    kafka.send_in_transaction(topic, _values(30, 32))
    assert copied.run("second") == _numbers(range(10), *aborted, range(30, 32))


def test_the_last_records_are_read_although_they_are_fewer_than_the_minimum_of_a_batch(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    kafka.create_topic("little")
    kafka.send("little", _values(0, 25))
    limits = {"maxOffsetsPerTrigger": 10, "minOffsetsPerTrigger": 10, "maxTriggerDelay": "1h"}
    assert Copy(Site(spark, tmp_path), kafka_options(kafka, "little", **limits)).run("only") == _numbers(range(25))


def test_a_source_that_begins_at_the_newest_records_reads_later_records(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    kafka.create_topic("newest", 2)
    kafka.send("newest", _values(0, 5))
    copied = Copy(Site(spark, tmp_path), kafka_options(kafka, "newest", startingOffsets="latest"))
    assert copied.run("first") == Counter()
    kafka.send("newest", _values(10, 13), 1)
    assert copied.run("second") == _numbers(range(10, 13))


def test_windows_and_joins_of_topics_are_whole_when_the_topics_have_ended(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """One of the topics has no record, and one stream is used twice."""
    site, pipeline = Site(spark, tmp_path), Pipeline("kafka_windows")
    for topic, values in {"orders": _values(0, 40), "payments": _values(20, 60), "nothing": []}.items():
        kafka.create_topic(topic, 2)
        kafka.send(topic, values, 1)

    def records(spark: SparkSession, topic: str) -> DataFrame:
        frame = spark.readStream.format("kafka").options(**kafka_options(kafka, topic)).load()
        return frame.select(F.col("value").cast("string").cast("long").alias(topic), F.col("timestamp").alias(f"{topic}_at"))

    @pipeline.source(bounded=True, event_time="orders_at")
    def orders(spark: SparkSession) -> DataFrame:
        return records(spark, "orders")

    @pipeline.source(bounded=True, event_time="payments_at")
    def payments(spark: SparkSession) -> DataFrame:
        return records(spark, "payments").union(records(spark, "nothing"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "paid")))
    def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
        in_time = F.expr("orders = payments AND payments_at BETWEEN orders_at - INTERVAL 1 DAY AND orders_at + INTERVAL 1 DAY")
        return orders.join(payments, in_time, "left")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "twice")))
    def twice(orders: DataFrame) -> DataFrame:
        windows = orders.union(orders).groupBy(F.window("orders_at", "1 hour"))
        return windows.count().select("count")

    site.run(pipeline)
    assert public(site.tables / "paid", ["orders", "payments"]) == Counter((n, n if n >= 20 else None) for n in range(40))
    assert sum(row[0] * times for row, times in public(site.tables / "twice").items()) == 80
    assert site.manifest().on_end is OnEnd.DRAIN


def test_the_pipeline_of_the_guide_copies_a_topic(kafka: KafkaBroker, spark: SparkSession, tmp_path: Path) -> None:
    kafka.create_topic("clicks")
    kafka.send("clicks", [b'{"page": "a"}', b'{"page": "b"}'])
    (tmp_path / "clicks.py").write_text(files(ROOT / "docs/how-to/sources.md")["clicks.py"])
    site = Site(spark, tmp_path)
    site.run(load_pipeline(str(tmp_path / "clicks.py")), params={"servers": kafka.servers, "warehouse": str(site.tables)})
    assert public(site.tables / "clicks", ["offset", "page"]) == Counter([(0, "a"), (1, "b")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": ""}, "reads Kafka without a beginning"),
        ({"subscribe": "no_such_topic"}, "reads a Kafka topic that is not there"),
    ],
)
def test_a_topic_that_is_missing_or_has_no_beginning_is_refused(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    kafka_and = {key: value for key, value in (kafka_options(kafka, "any") | options).items() if value}
    copied = Copy(Site(spark, tmp_path), kafka_and)
    with pytest.raises(InvalidPipelineError, match=message):
        copied.run("only")
    assert public_count(copied.table) is None


# A pattern finds the topics that are left, as a list names them.
@pytest.mark.parametrize(
    ("way", "fails_at", "left"),
    [("subscribe", 2, 2), pytest.param("subscribePattern", -1, 10, marks=pytest.mark.nightly), ("assign", -1, 10)],
)
def test_a_topic_that_leaves_a_source_is_left_out_on_request(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, way: str, fails_at: int, left: int
) -> None:
    """The topic is deleted or taken out of the options, in an interrupted round or between two rounds."""
    stays, leaves = f"stays-{way}", f"leaves-{way}"
    for topic in (stays, leaves):
        kafka.create_topic(topic)
    kafka.send(stays, _values(0, 10))
    kafka.send(leaves, _values(100, 110))

    def reading(*topics: str) -> dict[str, str]:
        named = {
            "subscribe": ",".join(topics),
            "subscribePattern": f".*-{way}",
            "assign": json.dumps({topic: [0] for topic in topics}),
        }
        options = kafka_options(kafka, "", maxOffsetsPerTrigger=4)
        del options["subscribe"]
        return options | {way: named[way]}

    options = reading(stays, leaves)
    site = Site(spark, tmp_path)
    copied, run = Copy(site, options, fails_at), "day 1"
    copied.flag.touch()
    if fails_at < 0:
        copied.run(run)
        kafka.send(stays, _values(10, 20))
        run = "day 2"
    else:
        with pytest.raises(InterruptedRunError, match="as told"):
            copied.run(run)
        copied.flag.unlink()
    if way == "subscribePattern":
        kafka.delete_topic(leaves)
    options.update(reading(stays))
    gone = f"1 partition that the source does not read any more, such as 0 of topic {leaves} from offset {left} on"
    with pytest.raises(RejectedError, match=gone) as refused:
        copied.run(run)
    assert "--accept-data-loss numbers" in refused.value.remedy
    site.run(copied.pipeline, run_id=run, accept_data_loss=["numbers"])
    assert public(copied.table) == _numbers(range(10 if fails_at >= 0 else 20), range(100, 100 + left))
    kafka.send(stays, _values(20, 30))
    so_far = 10 if fails_at >= 0 else 20
    assert copied.run("day 3") == _numbers(range(so_far), range(20, 30), range(100, 100 + left))


def test_a_new_stage_that_begins_now_reads_the_records_after_those_of_the_last_round(
    kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """The rule also holds if the first round has no record. An added partition is read from its first record."""
    kafka.create_topic("begins-now", 2)
    kafka.send("begins-now", _values(0, 10), 0)
    site = Site(spark, tmp_path)
    options = kafka_options(kafka, "begins-now")
    Copy(site, options).run("first")
    copied = Copy(site, options)

    @copied.pipeline.stage(sink=DeltaSink(str(site.tables / "later")), begin="now")
    def later(numbers: DataFrame) -> DataFrame:
        return numbers.select(F.col("value").cast("string").cast("long").alias("number"))

    copied.run("second")
    assert public_count(site.tables / "later") == 0
    kafka.add_partitions("begins-now", 3)
    for partition in range(3):
        kafka.send("begins-now", _values(100 * (partition + 1), 100 * (partition + 1) + 10), partition)
    since = [range(number, number + 10) for number in (100, 200, 300)]
    assert copied.run("third") == _numbers(range(10), *since)
    assert public(site.tables / "later") == _numbers(*since)
