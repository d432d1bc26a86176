"""The source of a stage without other streams: one row for each time that the stage computes its table.

It is Spark's source ``rate-micro-batch``, which gives one row a batch. Its offset is ``{"offset": 2, "timestamp": 1764201600000}``. A round
pins a moment, and the line of its batch in Spark's offset log gets the moment as its timestamp: so a stage has one batch in each round,
whenever it is started. A stream without an end has a row whenever Spark looks for one.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.pins import ClockPin, Pin
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.inputs.other_source import OtherSource
from spark_jobs.runtime.inputs.source_kind import OwnLog
from spark_jobs.runtime.spark.plan import Leaf

_FORMAT = "rate-micro-batch"
_CLOCK = "spark_jobs.clock"
"""An option that distinguishes the stream from a user's."""


def clock(spark: SparkSession, column: str) -> DataFrame:
    """Returns the stream. It has one column."""
    reader = spark.readStream.format(_FORMAT).option(_CLOCK, True)
    return reader.option("rowsPerBatch", 1).option("numPartitions", 1).load().selectExpr(f"value AS {column}")


class ClockSource(OtherSource):
    """The kind of these streams."""

    def reads(self, leaf: Leaf) -> bool:
        return leaf.format == _FORMAT and _CLOCK in leaf.options

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:
        """Does nothing: no row can be lost or repeated."""

    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        return known

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> ClockPin:
        return ClockPin(moment_ms=time.time_ns() // 1_000_000)

    def check_new(self, name: InputName, session: SparkSession, leaf: Leaf, earlier: Pin | None, now: Pin) -> None:
        if isinstance(earlier, ClockPin) and isinstance(now, ClockPin) and now.moment_ms <= earlier.moment_ms:
            raise RejectedError(
                f"The clock of this host is {earlier.moment_ms - now.moment_ms} ms behind the beginning of the last round, so "
                f"'{name}' has no moment for a new one.",
                exists="The tables have the rows of the newest published checkpoint.",
                remedy="Set the clock, and run again.",
                input=name,
            )

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        return ClockBound(pin.moment_ms) if isinstance(pin, ClockPin) else Bound()


@dataclass(frozen=True)
class ClockBound(Bound):
    """The end of a stream at a moment."""

    moment_ms: int

    def exceeded(self, previous: str | None, line: str) -> bool:
        return not self.reached(previous) and _offset(line)["timestamp"] != self.moment_ms

    def reached(self, line: str | None) -> bool:
        return line is not None and _offset(line)["timestamp"] >= self.moment_ms

    def cut_back(self, previous: str | None, line: str) -> str:
        return json.dumps(_offset(line) | {"timestamp": self.moment_ms})

    def once_more(self, line: str) -> str:
        offset = _offset(line)
        return json.dumps(offset | {"offset": offset["offset"] + 1})

    def rows_expected(self, line: str | None) -> int:
        return 0 if self.reached(line) else 1


def _offset(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found
