"""What people see while a driver works: the status document, kept fresh by a thread of its own."""

import json
import logging
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.control.status import write_status
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, RunId, StageName
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 2.0


class Heartbeat:
    """Keeps ``status.json`` fresh while the context is open, and writes every change of state at once.

    A failing write is logged, never raised.

    Args:
        files: The home.
        attempt: The live attempt.
        run: Whose run it is.
        stages: In topological order.
        spark_ui: Where Spark's own pages are.
    """

    def __init__(self, files: Files, attempt: AttemptNumber, run: RunId, stages: list[StageName], spark_ui: str | None) -> None:
        self._files = files
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
        self._seen: dict[StageName, set[tuple[str, int]]] = {name: set() for name in stages}
        self._timers: dict[StageName, int] = {}
        self._rows_expected: dict[StageName, int] = {}
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._write()
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

    def state(self, state: RunState, checkpoint: CheckpointId | None = None) -> None:
        """Tells where the attempt is."""
        with self._lock:
            self._status = self._status.model_copy(update={"state": state} | ({"checkpoint": checkpoint} if checkpoint else {}))
        self._changed.set()
        _LOG.info("%s", state.value)

    def stage(self, name: StageName, state: StageState) -> None:
        """Tells where a stage is."""
        self._update(name, {"state": state} | ({"progress": 1.0} if state is StageState.ENDED else {}))
        _LOG.info("stage %s: %s", name, state.value, extra={"stage": name})

    def expect(self, name: StageName, rows: int | None) -> None:
        """Tells how many rows a stage will read, where that is known."""
        if rows:
            self._rows_expected[name] = rows

    def observe(self, name: StageName, query: StreamingQuery) -> None:
        """Takes in what Spark reported about a query since the last look."""
        for progress in query.recentProgress:
            key = (str(progress["runId"]), int(progress["batchId"]))
            if key not in self._seen[name]:
                self._seen[name].add(key)
                self._take(name, progress)

    def timers_registered(self, name: StageName) -> bool:
        """Whether the stage's newest batch registered timers."""
        return self._timers.get(name, 0) > 0

    def _take(self, name: StageName, progress: Any) -> None:
        operators = progress["stateOperators"]
        self._timers[name] = sum(int(o["customMetrics"].get("numRegisteredTimers", 0)) for o in operators)
        before = self.status.stages[name]
        rows_in = before.rows_in + int(progress["numInputRows"])
        expected = self._rows_expected.get(name)
        watermark = progress["eventTime"].get("watermark")
        self._update(
            name,
            {
                "batch": BatchId(int(progress["batchId"])),
                "rows_in": rows_in,
                "rows_per_s": float(progress["processedRowsPerSecond"] or 0.0),
                "late_rows": before.late_rows + sum(int(o["numRowsDroppedByWatermark"]) for o in operators),
                "watermark_ms": _milliseconds(watermark) if watermark else before.watermark_ms,
                "progress": min(rows_in / expected, 1.0) if expected else None,
            },
        )
        _LOG.info(
            "stage %s: batch %d, %d rows",
            name,
            progress["batchId"],
            progress["numInputRows"],
            extra={"stage": name, "progress": json.loads(json.dumps(progress, default=str))},
        )

    def _update(self, name: StageName, fields: dict[str, Any]) -> None:
        with self._lock:
            stage = self._status.stages[name].model_copy(update=fields)
            self._status = self._status.model_copy(update={"stages": self._status.stages | {name: stage}})

    def _beat(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(_INTERVAL_S)
            self._changed.clear()
            self._write()

    def _write(self) -> None:
        try:
            write_status(self._files, self.status.model_copy(update={"updated_at": datetime.now(UTC)}))
        except StreamPipelineError as error:
            _LOG.warning("the heartbeat was not written: %s", error)


def _milliseconds(timestamp: str) -> int:
    """A timestamp as Spark reports it, in milliseconds since 1970."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
