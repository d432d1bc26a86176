"""Checks from time to time what a running query has read from its unbounded sources, and what it has not read yet."""

import time
from dataclasses import dataclass, field, replace

from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.runtime.spark.plan import has_begun
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.built_stage import BuiltStage

INTERVAL_S = 60.0
_SHARE = 0.01
"""The share of time for these checks: a folder with a million files is listed less often than one with ten."""


@dataclass
class SourceWatch:
    """Runs a check at most once in :data:`INTERVAL_S`, first when a query begins after the stage was built."""

    _due_s: float = field(default=0.0, init=False)

    def look(self, run: BuiltStage, query: StreamingQuery) -> None:
        """Runs a check if it is due.

        Args:
            run: The stage.
            query: Its running query.

        Raises:
            RejectedError: A source has changed that was read.
        """
        streams = [
            (number, stream) for number, stream in enumerate(run.sources) if stream is not None and stream.read.pin is None
        ]
        began_s = time.monotonic()
        if not streams or began_s < self._due_s or not has_begun(query):
            return
        last = run.spark_log.last_commit()
        lines = () if last == NO_BATCH else run.spark_log.offsets(last).sources
        for number, stream in streams if lines else ():
            lag = stream.kind.check_read(replace(stream.read, line=lines[number]), query, number)
            if lag is not None:
                run.heartbeat.lag(run.stage.name, {run.arguments[number]: lag})
        now_s = time.monotonic()
        self._due_s = now_s + max(INTERVAL_S, (now_s - began_s) / _SHARE)
