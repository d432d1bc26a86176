"""The limit for the rows that a stage stages ahead of its consumers."""

import json

import pytest

from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.runtime.stages.stage_output import StageOutput
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged

FILE_BYTES = 9


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def output(files: MemoryFiles) -> StageOutput:
    """The output of a stage with four batches of one file each."""
    log = begun(files)
    for batch in range(4):
        log.append(staged(batch, f"{batch}.parquet"))
    return StageOutput(StageName("producer"), log, None, None, held=False)


def consumer(files: MemoryFiles, name: str, batches_read: int) -> Consumer:
    """A consumer with one committed batch, which has read this number of the producer's batches."""
    line = json.dumps({"reservoirVersion": batches_read + 1, "index": -1})
    files.create(f"{name}/offsets/0", "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), line]).encode())
    files.create(f"{name}/commits/0", b"v1\n{}")
    return Consumer(SparkLog(files, name), 0)


def test_a_stage_is_ahead_by_the_rows_that_its_slowest_consumer_has_not_consumed(files: MemoryFiles, output: StageOutput) -> None:
    output.add_consumer(consumer(files, "fast", 4))
    assert output.ahead_bytes() == 0
    output.add_consumer(consumer(files, "slow", 1))
    assert output.ahead_bytes() == 3 * FILE_BYTES
    output.add_consumer(Consumer(SparkLog(files, "has not begun"), 0))
    assert output.ahead_bytes() == 4 * FILE_BYTES


def test_a_stage_without_consumers_is_never_ahead(output: StageOutput) -> None:
    assert output.ahead_bytes() == 0


def test_there_is_room_until_a_stage_is_ahead_by_its_limit(files: MemoryFiles, output: StageOutput) -> None:
    output.add_consumer(consumer(files, "slow", 2))
    assert output.has_room(2 * FILE_BYTES + 1)
    assert not output.has_room(2 * FILE_BYTES)
    assert output.has_room(None)
