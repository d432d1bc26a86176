"""What a batch does before its rows are staged."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.stages.built_stage import BuiltStage
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.staging import StageWriter
from tests.support.memory_files import MemoryFiles


def test_a_log_in_a_store_is_read_again_once_a_batch_has_begun() -> None:
    files = MemoryFiles()
    log, gate = SparkLog(files, "checkpoint"), Gate()
    run = cast(
        BuiltStage,
        SimpleNamespace(spark_log=log, gate=gate, log=SimpleNamespace(latest=lambda: 0), stage=SimpleNamespace(name="a")),
    )
    log.begun(BatchId(0))
    files.contents["checkpoint/commits/0"] = b""
    assert log.last_commit() == 0
    gate.turn_away()
    with pytest.raises(RuntimeError, match="batch 1 was not staged"):
        StageWriter(run)(cast(Any, None), 1)
    files.contents["checkpoint/commits/1"] = b""
    assert log.last_commit() == 1
