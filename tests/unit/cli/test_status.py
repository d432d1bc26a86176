import pytest

from spark_jobs.control.status import write_status
from spark_jobs.protocol.documents import ErrorReport, InputLag, RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, BatchId, RunId, StageName
from tests.support.command_line import UsedHome, a_try, document, spark_jobs
from tests.support.staged_pipeline import NOW


def test_a_home_that_is_none_is_refused(unused: UsedHome) -> None:
    for name in ("status", "checkpoints", "inspect", "publish"):
        refused = spark_jobs(name, "--home", unused.url)
        assert refused.exit_code == 2
        assert "is not the home of a pipeline" in refused.stderr
    assert unused.files.names("") == []


def test_a_home_on_an_unknown_store_is_refused() -> None:
    refused = spark_jobs("status", "--home", "s3://bucket/home", "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["error"] == "InvalidParameterError"


def test_a_run_that_was_interrupted_says_how_to_go_on(interrupted: UsedHome) -> None:
    interrupted.beat(RunState.RUNNING)
    shown = spark_jobs("status", "--home", interrupted.url)
    assert shown.exit_code == 0
    assert "run it again to go on" in shown.stdout
    assert "12,345 rows" in shown.stdout
    assert "50%" in shown.stdout
    assert "7 late" in shown.stdout
    assert "none yet" in shown.stdout


def test_a_finished_pipeline_says_so(drained: UsedHome) -> None:
    drained.beat()
    shown = spark_jobs("status", "--home", drained.url)
    assert "took 2 s, the pipeline is drained" in shown.stdout
    assert "again" not in shown.stdout


def test_stages_are_shown_in_the_order_of_the_graph(interrupted: UsedHome) -> None:
    interrupted.beat()
    assert list(document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["status"]["stages"]) == [
        "hourly",
        "daily",
    ]


def test_a_program_reads_the_newest_attempt_round_and_checkpoint(drained: UsedHome) -> None:
    answer = document(spark_jobs("status", "--home", drained.url, "--output", "json"))
    assert (answer["pipeline"], answer["at_work"], answer["round"], answer["checkpoint"]) == ("flights", False, 1, 1)
    assert answer["attempt"]["run"] == "monday"
    assert answer["status"] is None


def test_watching_ends_with_the_driver(interrupted: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, False, False])
    monkeypatch.setattr("spark_jobs.cli.status.driver_at_work", lambda files: next(looks))
    monkeypatch.setattr("spark_jobs.cli.status._WATCH_INTERVAL_S", 0.0)
    interrupted.beat(RunState.RUNNING)
    shown = spark_jobs("status", "--home", interrupted.url, "--watch")
    assert shown.exit_code == 0
    assert next(looks, None) is None


def test_a_running_stage_shows_its_batch_and_what_it_has_not_read(interrupted: UsedHome) -> None:
    lag = {"events": InputLag(), "copied": InputLag(rows=1_200, size_bytes=5_000), "more": InputLag(rows=34)}
    beat(interrupted, StageStatus(state=StageState.RUNNING, batch=BatchId(7), rows_per_s=55.4, lag=lag))
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "batch 7" in shown
    assert "55 rows/s" in shown
    assert "lag 1,234 rows (5.0 kB) of copied, more" in shown


def test_a_stage_that_starts_again_shows_why(interrupted: UsedHome) -> None:
    beat(interrupted, StageStatus(state=StageState.RESTARTING, restarts=3, reason="ValueError: no such airport"))
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "restarting" in shown
    assert "3. restart after ValueError: no such airport" in shown


def test_the_newest_checkpoint_shows_its_age_its_duration_and_what_has_failed_since(drained: UsedHome) -> None:
    report = ErrorReport(error="StorageFullError", retry="with_backoff", failed="The disk is full.")
    for _ in range(2):
        drained.staged.store.record(a_try(2, failure=report))
    shown = spark_jobs("status", "--home", drained.url).stdout
    assert "took 2 s" in shown
    assert " h ago" in shown
    assert "2 tries in a row have failed since" in shown
    answer = document(spark_jobs("status", "--home", drained.url, "--output", "json"))
    assert (answer["checkpoint_duration_s"], answer["checkpoint_failures"]) == (2.0, 2)


def beat(home: UsedHome, stage: StageStatus) -> None:
    """A heartbeat of attempt 1, whose stage hourly looks like this."""
    stages = {StageName("hourly"): stage}
    status = Status(attempt=AttemptNumber(1), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, stages=stages)
    write_status(home.files, status)
