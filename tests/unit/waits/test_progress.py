"""A task's log messages about a running pipeline."""

from datetime import UTC, datetime
from itertools import pairwise

from spark_jobs.protocol.documents import BlockedPublication, ErrorReport, RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import CheckpointId, SinkName, StageName
from spark_jobs.waits.progress import ProgressLog, doing, progress
from tests.support.heartbeats import status


def test_progress_names_checkpoint_stage_batch_rate_and_watermark() -> None:
    seen = status(
        rows_in=1_000, rows_per_s=50.4, watermark_ms=1_357_041_600_000, progress=0.25, late_rows=2, violations={"positive": 3}
    )
    assert progress(seen.model_copy(update={"checkpoint": CheckpointId(7)})) == [
        "attempt 2: running, checkpoint 7",
        "stage hourly: running, batch 3, 25%, 1,000 rows, 50 rows/s, watermark 2013-01-01 12:00:00Z, 2 late, 3 violate positive",
    ]


def test_a_failed_stage_shows_its_reason_also_before_its_first_batch() -> None:
    reason = "PermanentFailureError: Stage 'hourly' failed in batch 0"
    failed = StageStatus(state=StageState.FAILED, reason=reason)
    seen = status().model_copy(update={"stages": {StageName("hourly"): failed}})
    assert progress(seen)[1] == "stage hourly: failed, 0 rows, 0 rows/s, PermanentFailureError: Stage 'hourly' failed in batch 0"


def test_a_drained_stage_has_its_watermark_at_the_end_of_time() -> None:
    assert "watermark at the end of time" in progress(status(watermark_ms=253_402_300_799_000))[1]


def test_progress_is_logged_at_most_every_ten_seconds_and_at_once_when_the_state_changes() -> None:
    log = ProgressLog()
    assert log.lines(None, 0.0) == []
    assert log.lines(status(batch=1), 1.0)
    assert log.lines(status(batch=2), 10.9) == []
    assert log.lines(status(batch=2), 11.0)
    assert log.lines(status(batch=2), 30.0) == []
    assert log.lines(status(RunState.PUBLISHING, batch=2), 30.1) == ["attempt 2: publishing"]


def test_the_progress_of_a_long_activity_is_logged_less_often() -> None:
    log = ProgressLog()
    told_s = [second for second in range(0, 86_400, 5) if log.lines(status(batch=second), float(second))]
    pauses_s = [later - sooner for sooner, later in pairwise(told_s)]
    assert pauses_s[0] == 10
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == 300
    last_s = told_s[-1]
    assert log.lines(status(RunState.STOPPING, batch=1), last_s + 1.0)
    assert log.lines(status(RunState.STOPPING, batch=2), last_s + 11.0)


def blocked(seen: Status, tries: int = 1) -> Status:
    error = ErrorReport(
        error="UnsupportedTableError",
        retry="never",
        failed="Sink daily: 7 rows break positive.",
        remedy="Drop the constraint.",
        evidence={"sink": "daily"},
    )
    since = datetime(2026, 3, 2, 9, 14, 7, tzinfo=UTC)
    found = BlockedPublication(checkpoint=CheckpointId(4), since=since, tries=tries, waiting=(SinkName("daily"),), error=error)
    return seen.model_copy(update={"blocked": found})


BLOCKED = (
    "Publication is blocked by sink daily since 2026-03-02 09:14:07Z, from checkpoint 4 on: UnsupportedTableError: "
    "Sink daily: 7 rows break positive. Waiting: daily. Drop the constraint."
)


def test_a_blocked_publication_is_logged_at_once_and_once_with_its_remedy() -> None:
    log = ProgressLog()
    log.lines(status(batch=1), 1.0)
    assert log.lines(blocked(status(batch=1)), 2.0) == [BLOCKED]
    assert BLOCKED not in log.lines(blocked(status(batch=2), tries=2), 20.0)
    assert doing(blocked(status())) == f"attempt 2: running. {BLOCKED}"
    assert doing(blocked(status(), tries=2)) == doing(blocked(status())), "no line for each try"
