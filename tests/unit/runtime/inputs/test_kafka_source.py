"""Ends of Kafka streams: the batches that read past the end of a partition, and the rows that such batches get instead."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import KnownFiles, KnownKafka, KnownSource
from spark_jobs.protocol.losses import LostOffsets, OffsetRange, PassedOver, Records
from spark_jobs.protocol.masking import unmasked
from spark_jobs.protocol.pins import KafkaPin
from spark_jobs.runtime.inputs import kafka_source
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.inputs.kafka_source import (
    KafkaBound,
    KafkaSource,
    Partition,
    kafka_beginning,
    kafka_line,
    kafka_pin,
    partition_offsets,
    were_read,
)
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.storage.local import LocalFiles

PIN = KafkaPin(topics={"clicks": {0: 5, 1: 3}, "empty": {0: 0}})


def line(zero: int, one: int, **more: int) -> str:
    """Offsets of partitions 0 and 1 of ``clicks``, of ``empty``, and of further partitions of ``clicks``."""
    further = {number.removeprefix("p"): offset for number, offset in more.items()}
    return json.dumps({"clicks": {"0": zero, "1": one} | further, "empty": {"0": 0}})


def beginning(root: Path, offsets: str | None = None) -> Callable[[], dict[Partition, int]]:
    (root / "sources/0").mkdir(parents=True, exist_ok=True)
    if offsets is not None:
        (root / "sources/0/0").write_bytes(b"\0v1\n" + offsets.encode())
    return partial(kafka_beginning, LocalFiles(root), "sources/0")


@pytest.fixture
def bound(tmp_path: Path) -> KafkaBound:
    return KafkaBound(PIN, beginning(tmp_path, line(0, 0)))


def test_a_batch_up_to_the_end_of_each_partition_is_within_the_end(bound: KafkaBound) -> None:
    assert not bound.exceeded(line(1, 1), line(5, 3))
    assert not bound.exceeded(None, line(5, 3))
    assert not bound.exceeded(None, NO_OFFSET)


@pytest.mark.parametrize("past", [line(6, 3), line(5, 4)])
def test_a_batch_with_one_partition_past_its_end_exceeds_the_end(bound: KafkaBound, past: str) -> None:
    assert bound.exceeded(line(1, 1), past)
    assert bound.exceeded(None, past)


def test_each_partition_is_cut_back_to_its_own_end(bound: KafkaBound) -> None:
    assert partition_offsets(bound.cut_back(line(1, 1), line(9, 2))) == partition_offsets(line(5, 2))


def test_a_partition_that_has_ended_stays_at_its_end_while_others_go_on(bound: KafkaBound) -> None:
    cut = bound.cut_back(line(5, 1), line(7, 2))
    assert partition_offsets(cut) == partition_offsets(line(5, 2))
    assert not bound.reached(cut)
    assert bound.reached(bound.cut_back(line(5, 2), line(8, 4)))


def test_a_partition_that_was_added_after_the_pin_is_left_out_of_the_round(bound: KafkaBound) -> None:
    assert bound.exceeded(line(1, 1), line(5, 3, p2=4))
    assert bound.cut_back(line(1, 1), line(5, 3, p2=4)) == line(5, 3)


def test_a_partition_that_was_added_before_the_first_batch_stays_at_its_start_offset(tmp_path: Path) -> None:
    """Spark has included the partition in the batch's start offsets. If the end offsets lacked it, Spark would consider it lost."""
    bound = KafkaBound(PIN, beginning(tmp_path, line(0, 0, p2=0)))
    assert bound.exceeded(None, line(5, 3, p2=4))
    assert bound.cut_back(None, line(5, 3, p2=4)) == line(5, 3, p2=0)
    assert not bound.exceeded(line(5, 3, p2=0), line(5, 3, p2=0))
    assert bound.reached(line(5, 3, p2=0))


def test_a_partition_whose_beginning_is_behind_its_end_has_ended(tmp_path: Path) -> None:
    """The partition's records have expired, or the source begins at the newest records."""
    bound = KafkaBound(PIN, beginning(tmp_path, line(8, 3)))
    assert not bound.exceeded(None, line(8, 3))
    assert bound.reached(line(8, 3))
    assert bound.cut_back(None, line(9, 3)) == line(8, 3)


@pytest.mark.parametrize(
    ("offsets", "reached"),
    [(None, False), (NO_OFFSET, False), (line(5, 2), False), (line(5, 3), True), ('{"clicks": {"0": 5, "1": 3}}', True)],
)
def test_everything_is_read_when_every_partition_is_at_its_end(bound: KafkaBound, offsets: str | None, reached: bool) -> None:
    assert bound.reached(offsets) is reached


def test_records_that_spark_leaves_because_they_are_too_few_are_planned(bound: KafkaBound) -> None:
    planned = bound.passed_over(line(5, 1))
    assert planned == line(5, 3)
    assert bound.passed_over(planned) is None


def test_a_running_query_may_read_up_to_the_ends_and_no_partition_goes_back(bound: KafkaBound) -> None:
    assert bound.available(line(2, 4, p2=1)) == line(5, 4, p2=1)
    assert bound.available(NO_OFFSET) == line(5, 3)


def test_offsets_tell_how_many_rows_are_left_at_most(bound: KafkaBound, tmp_path: Path) -> None:
    assert bound.rows_expected(line(4, 1)) == 3
    assert bound.rows_expected(None) == 8
    assert KafkaBound(PIN, beginning(tmp_path / "unknown")).rows_expected(None) is None


def test_a_partition_that_is_no_longer_read_has_no_end(tmp_path: Path) -> None:
    gone = LostOffsets(input=InputName("rows"), stage=StageName("copy"), topics={"clicks": {1: OffsetRange(first=1)}})
    log = OwnLog(LocalFiles(tmp_path), "sources/0")
    bound = KafkaSource().bound(PIN, None, Leaf(0, "", "kafka", {}, StructType()), log, [gone])
    assert bound.reached('{"clicks": {"0": 5}, "empty": {"0": 0}}')
    assert not bound.reached('{"clicks": {"0": 4}, "empty": {"0": 0}}')


Offsets = dict[tuple[str, int], int]
OFFSETS = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 9))


@given(ends=OFFSETS, before=OFFSETS, steps=OFFSETS)
def test_a_cut_back_batch_is_within_the_end_and_never_goes_backwards(ends: Offsets, before: Offsets, steps: Offsets) -> None:
    bound = KafkaBound(kafka_pin(kafka_line(ends)), dict)
    begin = kafka_line(before)
    spark = kafka_line(before | {partition: before.get(partition, 0) + step for partition, step in steps.items()})
    cut = bound.cut_back(begin, spark)
    assert not bound.exceeded(begin, cut)
    assert all(partition_offsets(cut)[partition] >= offset for partition, offset in before.items())
    assert bound.exceeded(begin, spark) is (partition_offsets(cut) != partition_offsets(spark))


def test_a_pin_is_made_from_an_offset_line_of_spark() -> None:
    assert kafka_pin(line(5, 3)) == PIN


CLICKS = KnownKafka(cluster="one", topics={"clicks": "id-1", "views": "id-2"})


@pytest.mark.parametrize(
    ("options", "before", "read"),
    [
        ({"subscribe": "clicks"}, CLICKS, True),
        ({"subscribe": "views, clicks"}, CLICKS, True),
        ({"Assign": '{"clicks": [0]}'}, CLICKS, True),
        ({"subscribe": "clicks"}, None, False),
        ({"subscribe": "clicks"}, KnownFiles(path="file:///clicks"), False),
        ({"subscribe": "clicks,cliks"}, CLICKS, False),
        ({"assign": '{"cliks": [0]}'}, CLICKS, False),
        ({"subscribePattern": "cl.*"}, None, True),
    ],
)
def test_only_topics_that_were_read_before_may_be_unknown_for_a_moment(
    options: dict[str, str], before: KnownSource | None, read: bool
) -> None:
    assert were_read(Leaf(0, "", "kafka", options, StructType()), before) is read


class Broker:
    """A fake Kafka broker. The first ``unknown`` requests do not find the topic ``clicks``."""

    def __init__(self, unknown: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.unknown, self.now_s = 0, unknown, 0.0
        monkeypatch.setattr(kafka_source, "kafka_topics", lambda frame, leaf: ("one", {"clicks": "id-1"} if self.knows() else {}))
        monkeypatch.setattr(kafka_source, "oldest_kafka_offsets", lambda *asked: {("clicks", 0): 0} if self.knows() else {})
        monkeypatch.setattr(kafka_source, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def knows(self) -> bool:
        self.asked += 1
        return self.asked > self.unknown

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


def reading(root: Path, way: str) -> ReadSoFar:
    leaf = Leaf(0, "", "kafka", {way: "clicks"}, StructType())
    log = OwnLog(LocalFiles(root), "sources/0")
    session = cast(SparkSession, None)
    return ReadSoFar(InputName("rows"), 0, StageName("copy"), session, leaf, '{"clicks": {"0": 5}}', CLICKS, None, log)


def test_a_topic_of_a_pattern_that_is_unknown_for_a_moment_is_neither_lost_nor_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, frame = reading(tmp_path, "subscribePattern"), cast(DataFrame, None)
    Broker(3, monkeypatch)
    assert KafkaSource().lost(read, thorough=True) is None
    Broker(3, monkeypatch)
    now = KafkaSource().identify(read.name, frame, read.leaf, CLICKS, unmasked)
    assert KafkaSource().difference(CLICKS, now) is None


@pytest.mark.parametrize("way", ["subscribePattern", "subscribe"])
def test_a_topic_that_stays_unknown_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    broker = Broker(float("inf"), monkeypatch)
    lost = KafkaSource().lost(reading(tmp_path, way), thorough=True)
    assert lost is not None
    assert lost.topics == {"clicks": {0: OffsetRange(first=5)}}
    assert broker.now_s == (kafka_source.UNKNOWN_MAX_S if way == "subscribePattern" else 0)


def records(first: int, end: int, partition: int = 0) -> Records:
    return Records(topic="clicks", partition=partition, first=first, end=end)


def test_a_batch_can_be_run_without_each_of_its_offsets(tmp_path: Path) -> None:
    read, kafka = reading(tmp_path, "subscribe"), KafkaSource()
    planned = json.dumps({"clicks": {"0": 9, "1": 0, "2": 2}})
    assert kafka.units(read, planned) == [(records(5, 9), 4), (records(0, 2, 2), 2)]
    assert kafka.has_read(read, records(4, 5))
    assert not kafka.has_read(read, records(5, 6))


def test_an_offset_that_is_left_out_is_counted_only_in_the_batch_that_has_it(tmp_path: Path) -> None:
    read, kafka = reading(tmp_path, "subscribe"), KafkaSource()
    whose = {"input": InputName("rows"), "stage": StageName("copy"), "rows": 1, "error": "it fails", "tries": 3}
    losses = [PassedOver(unit=unit, **whose) for unit in (records(4, 5), records(6, 7), records(8, 9), records(6, 7, 1))]
    assert kafka.filtered(read, json.dumps({"clicks": {"0": 8}}), losses) == 1
    assert kafka.filtered(read, json.dumps({"clicks": {"0": 9}}), losses) == 2
    assert kafka.filtered(read, json.dumps({"clicks": {"0": 9}}), []) == 0
