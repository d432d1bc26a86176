"""The offsets and rows that an ended source gives to Spark at each start."""

import json
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.runtime.inputs.ended_source import EndedReader, EndedSource, is_ended

DELTA = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": 4, "index": -1, "isStartingVersion": False}
FILES = {"logOffset": 3}
KAFKA = {"clicks": {"0": 5}}
COLUMNS = StructType([StructField("at", TimestampType()), StructField("n", LongType(), False), StructField("name", StringType())])


def restarted() -> EndedReader:
    return EndedReader(COLUMNS, "at")


@pytest.mark.parametrize("recorded", [DELTA, FILES, KAFKA])
def test_an_ended_source_takes_over_the_offset_of_any_source_and_keeps_it(recorded: dict[str, Any]) -> None:
    rows, end = restarted().read(recorded)
    assert len(list(rows)) == 1
    assert end == {"ended": recorded, "starts": 1}
    assert is_ended(json.dumps(end))
    assert not is_ended(json.dumps(recorded))


def test_an_ended_source_takes_over_from_a_source_without_an_offset() -> None:
    _, end = restarted().read(restarted().initialOffset())
    assert end == {"ended": None, "starts": 1}


def test_each_start_emits_one_row_and_no_further_ones() -> None:
    offset: dict[str, Any] = DELTA
    for start in range(1, 4):
        reader = restarted()
        rows, offset = reader.read(offset)
        assert len(list(rows)) == 1
        assert offset == {"ended": DELTA, "starts": start}
        for _ in range(3):
            rows, again = reader.read(offset)
            assert not list(rows)
            assert again == offset


def test_an_ended_source_without_an_event_time_has_no_row_and_one_offset() -> None:
    offset: dict[str, Any] = DELTA
    for _ in range(3):
        rows, offset = EndedReader(COLUMNS, None).read(offset)
        assert not list(rows)
        assert offset == {"ended": DELTA, "starts": 0}
    assert not list(EndedReader(COLUMNS, None).readBetweenOffsets(DELTA, offset))


def test_a_batch_that_was_planned_before_a_restart_has_the_same_row_again() -> None:
    (batch,) = restarted().readBetweenOffsets(DELTA, {"ended": DELTA, "starts": 1})
    assert isinstance(batch, pa.RecordBatch)
    assert batch.num_rows == 1
    assert str(batch.column("at")[0].as_py()) == "9999-12-31 00:00:00+00:00"
    assert batch.to_pylist()[0] | {"at": None} == {"at": None, "n": 0, "name": None}


def test_a_process_without_this_package_can_run_an_ended_source() -> None:
    dumps: Any = cloudpickle.dumps
    sent: bytes = dumps(EndedSource({"eventTime": "at"}))
    assert pickle.loads(sent).name() == "ended"
    script = (
        "import sys, pickle; sys.modules['spark_jobs'] = None; "
        "source = pickle.loads(sys.stdin.buffer.read()); print(source.simpleStreamReader(None).initialOffset())"
    )
    ran = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=True)
    assert ran.stdout.decode().strip() == "{'ended': None, 'starts': 0}"
