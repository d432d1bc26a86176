"""The lag of a source behind its input, from Spark's progress reports."""

from typing import Any

import pytest

from spark_jobs.protocol.documents import InputLag
from spark_jobs.runtime.spark.source_lag import source_lag

DELTA = '{"sourceVersion": 1, "reservoirId": "a", "reservoirVersion": 2, "index": -1, "isStartingVersion": false}'


def test_the_lag_of_kafka_is_the_number_of_offsets_up_to_the_latest_ones() -> None:
    source = {"endOffset": '{"a": {"0": 10, "1": 4}, "b": {"0": 1}}', "latestOffset": '{"a": {"0": 12, "1": 4}, "b": {"0": 9}}'}
    assert source_lag(source) == InputLag(rows=10)


def test_a_partition_that_no_batch_has_read_counts_from_its_beginning() -> None:
    assert source_lag({"endOffset": '{"a": {"0": 10}}', "latestOffset": '{"a": {"0": 10, "1": 3}}'}) == InputLag(rows=3)


def test_the_lag_is_never_negative_for_a_topic_that_was_created_again() -> None:
    assert source_lag({"endOffset": '{"a": {"0": 10}}', "latestOffset": '{"a": {"0": 2}}'}) == InputLag(rows=0)


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        (DELTA, "null"),
        (DELTA, DELTA),
        ('{"logOffset": 3}', '{"logOffset": 5}'),
        ("null", '{"a": {"0": 10}}'),
        ("{}", "{}"),
        (None, None),
        ("not JSON", "not JSON"),
        ('{"a": {"0": "ten"}}', '{"a": {"0": "twelve"}}'),
    ],
)
def test_other_sources_have_no_lag(end: Any, latest: Any) -> None:
    assert source_lag({"endOffset": end, "latestOffset": latest}) == InputLag()
