"""Where a Kafka stream of a stage ends: partition by partition, at the offsets that were pinned when the round began.

Spark's lines for Kafka are positions, not records: ``{"clicks": {"0": 5}}`` says that the next record of partition 0 is to have offset 5 or
more. So an end that no record has (a transaction's marker, a record that was compacted away) is reached like any other.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.pins import KafkaPin
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.storage.files import Files

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


def partition_offsets(line: str) -> dict[Partition, int]:
    """What a line of Spark's offset log for Kafka says of each partition."""
    topics = json.loads(line)
    return {(topic, int(number)): int(offset) for topic, numbers in topics.items() for number, offset in numbers.items()}


def kafka_line(offsets: Mapping[Partition, int]) -> str:
    """The line of Spark's offset log with these positions."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics)


def kafka_pin(line: str) -> KafkaPin:
    """Everything before the offsets of a line."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), offset in partition_offsets(line).items():
        topics.setdefault(topic, {})[number] = offset
    return KafkaPin(topics=topics)


def kafka_beginning(files: Files, directory: str) -> dict[Partition, int]:
    """Returns where a query's first batch began: Spark works it out from the source's options once, and writes it beside the offset log.

    Empty as long as Spark has not worked it out.
    """
    try:
        data = files.read(f"{directory}/0")
    except NotFoundError:
        return {}
    return partition_offsets(data.decode().partition("\n")[2])  # a zero byte, the version, a new line, the offsets


@dataclass(frozen=True)
class KafkaBound(Bound):
    """Every record before the pinned offsets.

    A partition that came after the pin stays where it begins; the next round reads it from there. One that begins behind its pin, because
    its records have expired or the source begins at the newest ones, has ended.
    """

    pin: KafkaPin
    beginning: Callable[[], dict[Partition, int]]

    def exceeded(self, previous: str | None, line: str) -> bool:
        return line != NO_OFFSET and partition_offsets(line) != self._cut(previous, line)

    def reached(self, line: str | None) -> bool:
        if line is None or line == NO_OFFSET:
            return False
        offsets = partition_offsets(line)
        return all(offsets.get(partition, 0) >= end for partition, end in self._ends().items())

    def cut_back(self, previous: str | None, line: str) -> str:
        return kafka_line(self._cut(previous, line))

    def passed_over(self, line: str) -> str | None:
        """Spark finds nothing new where fewer records are left than the source's ``minOffsetsPerTrigger``."""
        return None if self.reached(line) else self.available(line)

    def available(self, line: str) -> str:
        offsets = {} if line == NO_OFFSET else partition_offsets(line)
        return kafka_line(offsets | {partition: max(offsets.get(partition, 0), end) for partition, end in self._ends().items()})

    def rows_expected(self, line: str | None) -> int | None:
        """At most: an offset may have no record."""
        begin = self.beginning() if line is None or line == NO_OFFSET else partition_offsets(line)
        return sum(max(end - begin.get(partition, 0), 0) for partition, end in self._ends().items()) if begin else None

    def _cut(self, previous: str | None, line: str) -> dict[Partition, int]:
        before = self.beginning() if previous is None or previous == NO_OFFSET else partition_offsets(previous)
        ends, cut = self._ends(), {}
        for partition, offset in partition_offsets(line).items():
            if partition in ends:
                cut[partition] = min(offset, max(ends[partition], before.get(partition, 0)))
            elif partition in before:
                cut[partition] = before[partition]
        return cut

    def _ends(self) -> dict[Partition, int]:
        return {(topic, number): end for topic, numbers in self.pin.topics.items() for number, end in numbers.items()}
