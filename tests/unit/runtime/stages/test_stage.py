"""The inputs of a stage that have ended."""

import json
from types import SimpleNamespace
from typing import cast

from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_output import StageOutput
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged

PRODUCER = StageName("producer")


class EndsWhileLookedAt(PrivateLog):
    """The log of a producer that stages its last rows and ends immediately after a read of the newest version."""

    output: StageOutput
    last: StagedBatch

    def latest(self) -> int:
        found = super().latest()
        if not self.output.ended.is_set():
            self.output.ended.set()
            self.append(self.last)
        return found


def test_a_channel_that_gets_its_last_rows_during_the_check_has_not_ended() -> None:
    files = MemoryFiles()
    log = begun(files)
    log.append(staged(0, "first.parquet"))
    line = json.dumps({"reservoirVersion": log.latest() + 1, "index": -1})
    files.create("consumer/offsets/0", "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), line]).encode())
    files.create("consumer/commits/0", b"v1\n{}")
    log.__class__ = EndsWhileLookedAt
    output = StageOutput(PRODUCER, log, None, None, held=False)
    racing = cast(EndsWhileLookedAt, log)
    racing.output, racing.last = output, staged(1, "last.parquet")
    fakes = {
        "spark_log": SparkLog(files, "consumer"),
        "bounds": [ChannelBound(PRODUCER, log, NO_BATCH)],
        "arguments": ["passed"],
        "upstream": [output],
        "ended": frozenset(),
    }
    consumer = SimpleNamespace(**fakes)
    consumer._may_end = lambda bound: StageRun._may_end(cast(StageRun, consumer), bound)
    assert StageRun.ended_inputs(cast(StageRun, consumer)) == frozenset()
    log.latest()
    assert output.ended.is_set()
    assert StageRun.ended_inputs(cast(StageRun, consumer)) == frozenset(), "its last rows are not read yet"
