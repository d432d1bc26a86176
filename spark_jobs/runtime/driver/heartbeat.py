"""The heartbeat of a driver: the status document, which a thread keeps up to date."""

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.control.home import look_interval_s
from spark_jobs.control.status import write_status
from spark_jobs.protocol.documents import (
    BlockedPublication,
    InputLag,
    RunState,
    StageState,
    StageStatus,
    Status,
    StopStatus,
    ToleratedRows,
)
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, RunId, StageName
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.runtime.spark.source_lag import source_lag
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 2.0
_EACH_LOGGED = 20
"""Number of first batches of a stage that are logged one by one. A stage that runs for months would fill the log."""
_LOGGED_EVERY_S = 60.0
"""Interval of a stage's log lines after its first :data:`_EACH_LOGGED` batches."""
_REASON_MAX = 500


class ReportKey(NamedTuple):
    """Identifies a progress report of a query."""

    run: str
    """Spark's id of the query's run."""
    batch: int
    timestamp: str
    """The trigger time of the report."""
    idle: bool
    """True if the query was idle. The next batch will have the same number."""


@dataclass
class _Logged:
    """The log lines about a stage's batches."""

    lines: int = 0
    line_at_s: float = 0.0
    batches: int = 0
    """Number of batches since the last log line."""
    rows: int = 0
    """Number of rows since the last log line."""


class Heartbeat:
    """Keeps ``status.json`` up to date while the context is open.

    The file is written at once if something about the whole attempt changes or a stage fails, and otherwise at regular intervals. A failed
    write is logged, never raised.

    Args:
        files: Files of the home.
        attempt: Number of the attempt.
        run: Id of the run.
        stages: Stages in topological order.
        spark_ui: URL of Spark's own pages.
        mask: Removes secrets from the status.
        now_s: A clock.
    """

    def __init__(
        self,
        files: Files,
        attempt: AttemptNumber,
        run: RunId,
        stages: list[StageName],
        spark_ui: str | None,
        *,
        mask: Mask = unmasked,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._interval_s = files, max(_INTERVAL_S, look_interval_s(files))
        self._mask, self._now_s = mask, now_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._changed = threading.Event()
        self._status = Status(
            attempt=attempt,
            run=run,
            state=RunState.STARTING,
            updated_at=datetime.now(UTC),
            stages={name: StageStatus(state=StageState.WAITING) for name in stages},
            spark_ui=spark_ui,
        )
        self._seen: dict[StageName, ReportKey] = {}
        self._logged = {name: _Logged() for name in stages}
        self._timers: dict[StageName, int] = {}
        self._rows_expected: dict[StageName, int] = {}
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._changed.set()
        self._thread.join()
        self.state(RunState.DONE if error is None else RunState.FAILED)
        self._write()

    @property
    def status(self) -> Status:
        with self._lock:
            return self._status

    def state(self, state: RunState) -> None:
        """Sets the state of the attempt."""
        self._set(state=state)
        _LOG.info("%s", state.value)

    def stop(self, stop: StopStatus) -> None:
        """Sets the progress of a stop."""
        self._set(stop=stop)
        _LOG.info("%s: %s", stop.request, stop.state.value)

    def blocked(self, blocked: BlockedPublication | None) -> None:
        """Sets the blocked publication; None if none is blocked."""
        self._set(blocked=blocked)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Counts a completed checkpoint, the newest one."""
        self._set(checkpoint=checkpoint, completed_checkpoints=self.status.completed_checkpoints + 1)

    def checkpoint_failed(self) -> None:
        """Counts a failed try at a checkpoint."""
        self._set(failed_checkpoints=self.status.failed_checkpoints + 1)

    def stage(self, name: StageName, state: StageState) -> None:
        """Sets the state of a stage."""
        self._set_stage(
            name, {"state": state, "reason": None} | ({"progress": 1.0, "lag": {}} if state is StageState.ENDED else {})
        )
        _LOG.info("stage %s: %s", name, state.value, extra={"stage": name})

    def restarting(self, name: StageName, error: Exception) -> None:
        """Marks a stage as failed and restarting, until its state is set again."""
        restarts = self.status.stages[name].restarts + 1
        self._set_stage(name, {"state": StageState.RESTARTING, "reason": self._reason(error), "restarts": restarts})
        self._changed.set()

    def failed(self, name: StageName, error: Exception) -> None:
        """Marks a stage as permanently failed. The others run on without it."""
        self._set_stage(name, {"state": StageState.FAILED, "reason": self._reason(error)})
        self._changed.set()

    def _reason(self, error: Exception) -> str:
        failed = error.failed if isinstance(error, StreamPipelineError) else str(error)
        return self._mask(f"{type(error).__name__}: {failed.strip()}")[:_REASON_MAX]

    def expect(self, name: StageName, rows: int | None) -> None:
        """Sets the number of rows that a stage will read, if it is known."""
        if rows:
            self._rows_expected[name] = rows

    def tolerates(self, name: StageName, tolerated: ToleratedRows) -> None:
        """Sets the number of rows that a stage may lose."""
        self._set_stage(name, {"tolerates": tolerated})

    def lag(self, name: StageName, lag: Mapping[str, InputLag]) -> None:
        """Sets a stage's lag by input. The lag of other inputs stays."""
        if lag:
            self._set_stage(name, {"lag": self.status.stages[name].lag | dict(lag)})

    def violated(self, name: StageName, rows: Mapping[str, int]) -> None:
        """Adds rows that violate an expectation, by expectation."""
        if rows:
            counted = Counter(self.status.stages[name].violations) + Counter(rows)
            self._set_stage(name, {"violations": dict(counted)})

    def observe(self, name: StageName, query: StreamingQuery, inputs: Sequence[str] = ()) -> None:
        """Reads Spark's reports about a query since the last call.

        Args:
            name: The stage.
            query: Its query.
            inputs: Input of each of its streams.
        """
        newest, seen = query.lastProgress, self._seen.get(name)
        if newest is None or _key(newest) == seen:
            return
        for progress in [newest] if _follows(_key(newest), seen) else query.recentProgress:
            if _is_after(_key(progress), seen):
                self._seen[name] = _key(progress)
                self._take(name, progress, inputs)

    def timers_registered(self, name: StageName) -> bool:
        """Returns True if the stage's newest batch registered timers."""
        return self._timers.get(name, 0) > 0

    def _take(self, name: StageName, progress: Any, inputs: Sequence[str]) -> None:
        operators = progress["stateOperators"]
        self._timers[name] = sum(int(o["customMetrics"].get("numRegisteredTimers", 0)) for o in operators)
        before = self.status.stages[name]
        rows_in = before.rows_in + int(progress["numInputRows"])
        expected = self._rows_expected.get(name)
        watermark = progress["eventTime"].get("watermark")
        self._set_stage(
            name,
            {
                "batch": BatchId(int(progress["batchId"])),
                "rows_in": rows_in,
                "rows_per_s": float(progress["processedRowsPerSecond"] or 0.0),
                "busy": _busy(progress),
                "late_rows": before.late_rows + sum(int(o["numRowsDroppedByWatermark"]) for o in operators),
                "watermark_ms": round(datetime.fromisoformat(watermark).timestamp() * 1000) if watermark else before.watermark_ms,
                "progress": min(rows_in / expected, 1.0) if expected else None,
            },
        )
        sources = progress["sources"]
        if len(sources) == len(inputs):
            lags = {argument: source_lag(source) for argument, source in zip(inputs, sources, strict=True)}
            self.lag(name, {argument: lag for argument, lag in lags.items() if lag.rows is not None})
        self._log(name, progress)

    def _log(self, name: StageName, progress: Any) -> None:
        logged, now_s = self._logged[name], self._now_s()
        logged.batches += 1
        logged.rows += int(progress["numInputRows"])
        if logged.lines >= _EACH_LOGGED and now_s - logged.line_at_s < _LOGGED_EVERY_S:
            return
        _LOG.info(
            "stage %s: batch %d, %d rows in %d batches",
            name,
            progress["batchId"],
            logged.rows,
            logged.batches,
            extra={"stage": name, "progress": json.loads(json.dumps(progress, default=str))},
        )
        self._logged[name] = _Logged(logged.lines + 1, now_s)

    def _set(self, **fields: Any) -> None:
        with self._lock:
            self._status = self._status.model_copy(update=fields)
        self._changed.set()

    def _set_stage(self, name: StageName, fields: dict[str, Any]) -> None:
        with self._lock:
            stage = self._status.stages[name].model_copy(update=fields)
            self._status = self._status.model_copy(update={"stages": self._status.stages | {name: stage}})

    def _beat(self) -> None:
        while not self._stop.is_set():
            self._write()
            self._changed.wait(self._interval_s)
            self._changed.clear()

    def _write(self) -> None:
        try:
            write_status(self._files, self.status.model_copy(update={"updated_at": datetime.now(UTC)}))
        except StreamPipelineError as error:
            _LOG.warning("the heartbeat was not written: %s", error)


def _busy(progress: Any) -> float | None:
    """Returns the share of time in which a query worked since its previous trigger; None in its first one.

    Spark divides the rows once by the time since the previous trigger began, and once by the time in which it processed them.
    """
    if not progress["numInputRows"]:
        return 0.0
    arrived, processed = progress.get("inputRowsPerSecond"), progress["processedRowsPerSecond"]
    share = float(arrived) / float(processed) if arrived and processed else math.nan
    return min(share, 1.0) if math.isfinite(share) else None


def _key(progress: Any) -> ReportKey:
    idle = "addBatch" not in progress["durationMs"]
    return ReportKey(str(progress["runId"]), int(progress["batchId"]), str(progress["timestamp"]), idle)


def _follows(newest: ReportKey, seen: ReportKey | None) -> bool:
    """Returns True if no report can be between the two.

    Most calls find one new batch, and reading a hundred reports costs a hundred calls.
    """
    return seen is not None and newest.run == seen.run and newest.batch == seen.batch + 1 and not seen.idle


def _is_after(progress: ReportKey, seen: ReportKey | None) -> bool:
    """Returns True if a report is a later one. Reports of one run are ordered by batch."""
    return seen is None or progress.run != seen.run or (progress.batch, progress.timestamp) > (seen.batch, seen.timestamp)
