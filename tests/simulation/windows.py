"""Replaces Spark's windows, joins and timers: rows that a stage holds back until the watermark has passed them.

Row N has the event time N. It is handed on once the watermark is past it. The watermark follows the newest row by a delay.
Rows behind the watermark are late and dropped, as in Spark. The state is kept in the entries of the commit log, next to Spark's own fields.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog

DELAY = 1
HELD = DELAY + 1
"""The number of rows that a stage still holds back at the end, unless it is drained."""


@dataclass(frozen=True)
class Windows:
    """The rows that one stage holds back.

    Args:
        log: The logs of its query.
        wanted: True if it holds back any rows.
    """

    log: SparkLog
    wanted: bool

    def watermark(self, last: BatchId) -> int:
        """Returns the watermark of the batch after ``last``."""
        return self.log.next_watermark_ms(last) if self.wanted and last != NO_BATCH else 0

    def lets_go(self, last: BatchId) -> bool:
        """Returns True if a batch without new rows would hand on some rows."""
        return self.wanted and last != NO_BATCH and self.watermark(last) > self.log.offsets(last).watermark_ms

    def result(self, batch: BatchId, rows: Sequence[int]) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Returns the rows that a batch hands on, and its entry in the commit log."""
        commit: dict[str, Any] = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {}}
        if not self.wanted:
            return tuple(rows), commit
        watermark = self.log.offsets(batch).watermark_ms
        late = self.log.offsets(BatchId(batch - 1)).watermark_ms if batch > 0 else watermark
        kept = [*self._held(batch - 1), *(row for row in rows if row >= late)]
        commit["nextBatchWatermarkMs"] = max(watermark, max(rows, default=0) - DELAY)
        commit["held"] = [row for row in kept if row >= watermark]
        return tuple(row for row in kept if row < watermark), commit

    def _held(self, batch: int) -> list[int]:
        return [] if batch < 0 else held_in(self.log.files.read(f"{self.log.directory}/commits/{batch}"))


def held_in(commit: bytes) -> list[int]:
    """Returns the rows that a stage holds back after a batch, from the batch's entry in the commit log."""
    return list(json.loads(commit.decode().split("\n")[1]).get("held", []))
