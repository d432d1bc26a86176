import logging
import time
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import InputLag, RunState, StageState, StageStatus, Status
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AttemptNumber, RunId, StageName
from spark_jobs.protocol.masking import masking
from spark_jobs.runtime.driver import heartbeat
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.storage.local import LocalFiles


def test_a_change_of_state_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_INTERVAL_S", 3_600.0)
    files = LocalFiles(str(tmp_path))
    with Heartbeat(files, AttemptNumber(1), RunId("r"), [StageName("hourly")], None) as beating:
        assert written(files, RunState.STARTING).stages.keys() == {"hourly"}
        beating.state(RunState.RUNNING)
        assert written(files, RunState.RUNNING).attempt == 1
    assert written(files, RunState.DONE).stages.keys() == {"hourly"}


def written(files: LocalFiles, state: RunState) -> Status:
    """Waits until the status document has this state, and returns it."""
    end_s = time.monotonic() + 10.0
    while time.monotonic() < end_s:
        status = read_status(files)
        if status is not None and status.state is state:
            return status
    raise AssertionError(f"{state} was not written")


HOURLY = StageName("hourly")


class Query:
    """A query that reports its batches like Spark: the newest one, and the last hundred."""

    def __init__(self, run: str = "first") -> None:
        self.run = run
        self.reports: list[dict[str, Any]] = []
        self.histories_read = 0

    def idle(self, number: int) -> None:
        """Reports an idle trigger. Spark reports it under the number of the next batch."""
        self.batch(number, rows=0)
        self.reports[-1]["durationMs"] = {"latestOffset": 1, "triggerExecution": 1}

    def batch(self, number: int, rows: int = 10, **source: Any) -> None:
        self.reports.append(
            {
                "runId": self.run,
                "batchId": number,
                "timestamp": f"2026-01-01T00:00:{len(self.reports):02}.000Z",
                "numInputRows": rows,
                "processedRowsPerSecond": 5.0,
                "durationMs": {"addBatch": 1, "latestOffset": 1, "triggerExecution": 2},
                "stateOperators": [],
                "eventTime": {},
                "sources": [source],
            }
        )

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        self.histories_read += 1
        return self.reports[-100:]


class Watched:
    """A heartbeat that observes queries, and its clock."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 0.0
        self.heartbeat = Heartbeat(
            LocalFiles(directory),
            AttemptNumber(1),
            RunId("r"),
            [HOURLY],
            None,
            mask=masking(["hunter-twelve"]),
            now_s=lambda: self.now_s,
        )

    def look(self, query: Query, inputs: tuple[str, ...] = ()) -> None:
        self.heartbeat.observe(HOURLY, cast(StreamingQuery, query), inputs)

    @property
    def stage(self) -> StageStatus:
        return self.heartbeat.status.stages[HOURLY]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_every_batch_is_counted_once_however_often_the_query_is_read(watched: Watched) -> None:
    query = Query()
    watched.look(query)
    for number in range(4):
        query.batch(number)
        if number != 1:  # two batches between two looks
            watched.look(query)
            watched.look(query)
    assert (watched.stage.rows_in, watched.stage.batch) == (40, 3)


def test_a_query_that_starts_again_continues_the_count(watched: Watched) -> None:
    first, second = Query("first"), Query("second")
    first.batch(0)
    watched.look(first)
    second.batch(0)
    second.batch(1)
    watched.look(second)
    assert watched.stage.rows_in == 30


def test_the_status_has_the_rate_the_watermark_and_all_late_rows_so_far(watched: Watched) -> None:
    query = Query()
    query.batch(0)
    query.reports[-1] |= {
        "processedRowsPerSecond": 12.5,
        "eventTime": {"watermark": "2026-01-01T00:00:07.250Z"},
        "stateOperators": [
            {"numRowsDroppedByWatermark": 3, "customMetrics": {}},
            {"numRowsDroppedByWatermark": 4, "customMetrics": {"numRegisteredTimers": 2}},
        ],
    }
    watched.look(query)
    assert (watched.stage.rows_per_s, watched.stage.watermark_ms, watched.stage.late_rows) == (12.5, 1_767_225_607_250, 7)
    assert watched.heartbeat.timers_registered(HOURLY)
    query.batch(1)
    query.reports[-1] |= {
        "processedRowsPerSecond": None,
        "stateOperators": [{"numRowsDroppedByWatermark": 5, "customMetrics": {}}],
    }
    watched.look(query)
    assert (watched.stage.rows_per_s, watched.stage.watermark_ms, watched.stage.late_rows) == (0.0, 1_767_225_607_250, 12)
    assert not watched.heartbeat.timers_registered(HOURLY)


@pytest.mark.parametrize(
    ("rows", "arrived", "processed", "busy"),
    [(10, 5.0, 20.0, 0.25), (10, 30.0, 20.0, 1.0), (10, None, 20.0, None), (10, float("nan"), 20.0, None), (0, 0.0, None, 0.0)],
)
def test_a_stage_is_busy_for_the_share_of_time_in_which_it_processes_rows(
    watched: Watched, rows: int, arrived: float | None, processed: float | None, busy: float | None
) -> None:
    query = Query()
    query.batch(0, rows)
    query.reports[-1] |= {"inputRowsPerSecond": arrived, "processedRowsPerSecond": processed}
    watched.look(query)
    assert watched.stage.busy == busy


def test_an_idle_report_does_not_hide_the_batch_of_the_same_number(watched: Watched) -> None:
    query = Query()
    query.batch(0)
    query.idle(1)
    watched.look(query)
    query.batch(1, rows=7)
    watched.look(query)
    assert watched.stage.rows_in == 17


def test_a_batch_between_an_idle_report_and_the_next_batch_is_counted(watched: Watched) -> None:
    query = Query()
    query.idle(0)
    watched.look(query)
    query.batch(0, rows=7)
    query.batch(1, rows=5)
    watched.look(query)
    assert watched.stage.rows_in == 12


def test_the_memory_of_the_heartbeat_does_not_grow_with_the_batches(watched: Watched) -> None:
    query = Query()
    query.batch(0)
    watched.look(query)
    size_bytes = remembered(watched.heartbeat)
    for number in range(1, 3_000):
        query.batch(number)
        watched.look(query)
    assert watched.stage.rows_in == 30_000
    assert remembered(watched.heartbeat) <= size_bytes + 100
    assert query.histories_read == 1, "a hundred reports are read only where some may have been missed"


def remembered(heartbeat: Heartbeat) -> int:
    """Returns the size of the heartbeat's fields without the status."""
    return sum(len(repr(value)) for name, value in vars(heartbeat).items() if name != "_status")


def test_a_stage_that_runs_for_weeks_logs_one_line_a_minute(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_jobs")
    query = Query()
    for number in range(1_000):
        watched.now_s = float(number)
        query.batch(number)
        watched.look(query)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["stage hourly: batch 0, 10 rows in 1 batches", "stage hourly: batch 1, 10 rows in 1 batches"]
    assert lines[20] == "stage hourly: batch 79, 600 rows in 60 batches"
    assert len(lines) == 20 + (1_000 - 20) // 60


def test_a_stage_that_starts_again_shows_the_reason_without_secrets_until_it_runs(watched: Watched) -> None:
    watched.heartbeat.restarting(HOURLY, ValueError("no login with hunter-twelve"))
    watched.heartbeat.restarting(HOURLY, StorageError("The disk is away.", remedy="Bring it back."))
    assert (watched.stage.state, watched.stage.restarts) == (StageState.RESTARTING, 2)
    assert watched.stage.reason == "StorageError: The disk is away."
    watched.heartbeat.restarting(HOURLY, ValueError("no login with hunter-twelve"))
    assert watched.stage.reason == "ValueError: no login with ***"
    watched.heartbeat.stage(HOURLY, StageState.RUNNING)
    running = watched.stage
    assert running.reason is None
    assert running.restarts == 3


def test_a_stage_that_has_failed_for_good_shows_the_reason_without_secrets(watched: Watched) -> None:
    watched.heartbeat.failed(HOURLY, ValueError("no login with hunter-twelve"))
    assert (watched.stage.state, watched.stage.reason) == (StageState.FAILED, "ValueError: no login with ***")


def test_the_heartbeat_has_the_lag_by_input_until_the_stage_ends(watched: Watched) -> None:
    query = Query()
    query.batch(0, endOffset='{"events": {"0": 5, "1": 7}}', latestOffset='{"events": {"0": 9, "1": 7, "2": 3}}')
    watched.look(query, ("events",))
    watched.heartbeat.lag(HOURLY, {"copied": InputLag(rows=3, size_bytes=90)})
    assert watched.stage.lag == {"events": InputLag(rows=7), "copied": InputLag(rows=3, size_bytes=90)}
    watched.heartbeat.stage(HOURLY, StageState.ENDED)
    assert watched.stage.lag == {}


def test_violations_of_an_attempt_add_up(watched: Watched) -> None:
    watched.heartbeat.violated(HOURLY, {"positive": 2})
    watched.heartbeat.violated(HOURLY, {"positive": 1, "known": 4})
    watched.heartbeat.violated(HOURLY, {})
    assert watched.stage.violations == {"positive": 3, "known": 4}
