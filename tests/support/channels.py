"""A channel between two stages."""

import json

from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound, Consumption
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged

CONSUMER, PRODUCER = StageName("consumer"), StageName("producer")


class Channel:
    """A producer with four batches of one, two, no and three files, and a consumer that also has another input."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log = begun(self.files)
        for batch, names in enumerate((["a"], ["b", "c"], [], ["d", "e", "f"])):
            self.log.append(staged(batch, *names))
        self.spark_log = SparkLog(self.files, "consumer")
        self.bounds = (Bound(), ChannelBound(PRODUCER, self.log, NO_BATCH))
        self.consumption = Consumption(self.spark_log, self.bounds)

    def consume(self, batch: int, version: int | None, index: int = -1) -> None:
        line = NO_OFFSET if version is None else json.dumps({"reservoirVersion": version, "index": index})
        header = json.dumps({"batchWatermarkMs": 0})
        self.files.create(f"consumer/offsets/{batch}", "\n".join(["v1", header, '{"else": 1}', line]).encode())
        self.files.create(f"consumer/commits/{batch}", b"v2\n{}")
