from contextlib import ExitStack

import pytest
from typer.testing import Result

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.status import write_status
from spark_jobs.protocol.documents import (
    CheckpointKind,
    ErrorReport,
    InputLag,
    Publish,
    RunState,
    StageState,
    StageStatus,
    Status,
    StopStatus,
)
from spark_jobs.protocol.errors import RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, IncarnationId, RequestId, RunId, StageName
from spark_jobs.protocol.states import StopState
from tests.support.command_line import BLOCKED, UsedHome, a_try, document, spark_jobs
from tests.support.measured_homes import passes_over, tolerant_status
from tests.support.staged_pipeline import NOW


def test_a_directory_that_is_not_a_home_is_refused(unused: UsedHome) -> None:
    for name in ("status", "checkpoints", "inspect", "publish"):
        refused = spark_jobs(name, "--home", unused.url)
        assert refused.exit_code == 2
        assert "is not the home of a pipeline" in refused.stderr
    assert unused.files.names("") == []


def test_a_home_on_an_unknown_store_is_refused() -> None:
    refused = spark_jobs("status", "--home", "wasbs://bucket/home", "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["error"] == "InvalidParameterError"


def test_the_status_of_an_interrupted_run_says_how_to_continue(interrupted: UsedHome) -> None:
    interrupted.beat(RunState.RUNNING)
    shown = spark_jobs("status", "--home", interrupted.url)
    assert shown.exit_code == 0
    assert "the last attempt did not finish" in shown.stdout
    assert "12,345 rows of the attempt" in shown.stdout
    assert "50%" in shown.stdout
    assert "7 late" in shown.stdout
    assert "none yet" in shown.stdout


@pytest.mark.parametrize("publish", [Publish.EVERY_CHECKPOINT, Publish.FINAL])
def test_stages_whose_tables_show_less_are_named_with_the_newest_checkpoint(interrupted: UsedHome, publish: Publish) -> None:
    """The stages are not named if no table shows the checkpoint."""
    behind = (StageName("daily"),)
    interrupted.complete(checkpoint_kind=CheckpointKind.PERIODIC, publish=publish, drained=False, behind=behind)
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    named = ["daily"] if publish is Publish.EVERY_CHECKPOINT else []
    assert document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["behind"] == named
    assert ("without daily: see spark-jobs checkpoints" in " ".join(shown.split())) == bool(named)


def test_a_round_that_has_not_ended_is_interrupted_unless_a_driver_is_at_work(interrupted: UsedHome) -> None:
    says = "1 is interrupted: the next run goes on with it"
    interrupted.beat()
    assert round_of(interrupted) == (1, True, says), "after a crash, or a cancel"
    interrupted.complete(checkpoint_kind=CheckpointKind.STOP, drained=False, request=RequestId("stop-mine"))
    assert round_of(interrupted) == (1, True, says), "after a stop, though the attempt is done"
    with interrupted.driver():
        assert round_of(interrupted) == (1, False, None)


@pytest.mark.parametrize("end", [CheckpointKind.FINAL, CheckpointKind.STOP], ids=["at its end", "by a drain"])
def test_a_round_that_has_ended_is_not_interrupted(interrupted: UsedHome, end: CheckpointKind) -> None:
    interrupted.complete(checkpoint_kind=end, drained=end is CheckpointKind.STOP)
    assert round_of(interrupted) == (1, False, None)
    interrupted.begin(2, run="tuesday")
    assert round_of(interrupted) == (2, True, "2 is interrupted: the next run goes on with it")


def test_a_round_that_a_fresh_start_has_abandoned_is_not_shown_as_interrupted(interrupted: UsedHome) -> None:
    attempts = Attempts(interrupted.files)
    newest = attempts.read(AttemptNumber(1))
    fresh = newest.model_copy(update={"attempt": AttemptNumber(2), "incarnation": IncarnationId("second")})
    attempts.begin(fresh, known=attempts.numbers())
    assert round_of(interrupted) == (1, False, None), "the attempt has ended before it began a round"


def round_of(home: UsedHome) -> tuple[int, bool, str | None]:
    """Returns the newest round, whether it is interrupted, and the round's line in the text output."""
    answer = document(spark_jobs("status", "--home", home.url, "--output", "json"))
    lines = [line.split(maxsplit=1) for line in spark_jobs("status", "--home", home.url).stdout.splitlines()]
    shown = [line[1].strip() for line in lines if line[:1] == ["round"]]
    return answer["round"], answer["interrupted"], shown[0] if shown else None


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


def test_the_json_answer_has_the_newest_attempt_round_and_checkpoint(drained: UsedHome) -> None:
    answer = document(spark_jobs("status", "--home", drained.url, "--output", "json"))
    assert (answer["pipeline"], answer["at_work"], answer["round"], answer["checkpoint"]) == ("flights", False, 1, 1)
    assert answer["attempt"]["run"] == "monday"
    assert answer["status"] is None


def test_the_rest_of_each_budget_is_shown(interrupted: UsedHome) -> None:
    write_status(interrupted.files, tolerant_status())
    passes_over(LossLedger(interrupted.files), 4)
    answer = document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))
    assert answer["budget_left_rows"] == {"hourly": 6, "daily": 10}
    assert "6 more rows in stage hourly" in spark_jobs("status", "--home", interrupted.url).stdout


def watched(home: UsedHome, *options: object) -> Result:
    """Watches a driver that ends after the first look."""
    with ExitStack() as at_work:
        at_work.enter_context(home.driver())
        return spark_jobs("status", "--home", home.url, "--watch", *options, sleep=lambda _: at_work.close())


def test_watching_ends_with_the_driver(interrupted: UsedHome) -> None:
    interrupted.beat(RunState.RUNNING)
    shown = watched(interrupted, "--output", "json")
    assert (shown.exit_code, document(shown)["at_work"]) == (0, False)


def test_the_error_that_ended_the_newest_attempt_is_shown_with_its_remedy(interrupted: UsedHome) -> None:
    channel = Channel(interrupted.files)
    error = RunCancelledError("Attempt 1 was cancelled: the cluster is needed.", remedy="Run it again to go on from there.")
    assert document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["error"] is None
    channel.respond_failure(channel.request(RequestId("start-1")), error)
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "last start  RunCancelledError: Attempt 1 was cancelled: the cluster is needed." in shown
    assert "Run it again to go on from there." in shown
    interrupted.begin(2)
    assert document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["error"] is None


def test_an_interrupted_watch_says_that_the_pipeline_was_not_stopped(
    interrupted: UsedHome,
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with interrupted.driver():
        shown = spark_jobs("status", "--home", interrupted.url, "--watch", "--output", "json", sleep=interrupt)
    assert shown.exit_code == 130
    error = document(shown)["error"]
    assert error["failed"] == "The display was interrupted."
    assert "goes on" not in error["remedy"]
    assert "continues" not in error["remedy"]


def test_watching_shows_the_stages_in_the_order_of_the_graph(interrupted: UsedHome) -> None:
    stages = {StageName(name): StageStatus(state=StageState.RUNNING) for name in ("daily", "hourly")}
    beat(interrupted, stages)
    shown = watched(interrupted).stderr
    assert 0 < shown.index("stage hourly") < shown.index("stage daily")


def test_a_running_stage_shows_its_batch_and_its_unread_rows(interrupted: UsedHome) -> None:
    lag = {
        "events": InputLag(),
        "copied": InputLag(rows=1_200, size_bytes=5_000),
        "more": InputLag(rows=34),
        "table": InputLag(versions=3),
    }
    beat(interrupted, StageStatus(state=StageState.RUNNING, batch=BatchId(7), rows_per_s=55.4, lag=lag))
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "batch 7" in shown
    assert "55 rows/s" in shown
    assert "lag 1,234 rows (5.0 kB) of copied, more, 3 versions of table" in shown


def test_a_stage_that_starts_again_shows_why(interrupted: UsedHome) -> None:
    beat(interrupted, StageStatus(state=StageState.RESTARTING, restarts=3, reason="ValueError: no such airport"))
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "restarting" in shown
    assert "3. restart after ValueError: no such airport" in shown


def test_a_stage_that_has_failed_shows_why_and_what_to_do(interrupted: UsedHome) -> None:
    beat(
        interrupted,
        StageStatus(state=StageState.FAILED, restarts=20, reason="RestartsExhaustedError: ValueError: no such airport"),
    )
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "hourly. Remove the cause, then start the pipeline again." in shown
    assert "after 20 restarts: RestartsExhaustedError: ValueError: no such airport" in shown
    with interrupted.driver():
        shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert "hourly. The other stages run on. Remove the cause, then stop the pipeline and start it again." in shown


def test_the_newest_checkpoint_shows_its_age_its_duration_and_later_failures(drained: UsedHome) -> None:
    for error, failed in (
        ("StorageFullError", "The disk is full."),
        (
            "DeadlineExceededError",
            "Checkpoint expired before completing: stage 'hourly' did not reach the end of a batch in time.",
        ),
    ):
        report = ErrorReport(error=error, retry="with_backoff", failed=failed)
        drained.staged.store.record(a_try(2, failure=report))
    shown = spark_jobs("status", "--home", drained.url).stdout
    assert "took 2 s" in shown
    assert " days ago" in shown
    assert "2 tries in a row have failed since" in shown
    assert "last try    DeadlineExceededError: Checkpoint expired before completing: stage 'hourly'" in shown
    answer = document(spark_jobs("status", "--home", drained.url, "--output", "json"))
    assert (answer["checkpoint_duration_s"], answer["checkpoint_failures"]) == (2.0, 2)
    assert answer["checkpoint_failure"]["error"] == "DeadlineExceededError"


@pytest.mark.parametrize(("drain", "word"), [(False, "stop"), (True, "drain")])
def test_the_progress_of_a_stop_has_its_own_line(interrupted: UsedHome, word: str, *, drain: bool) -> None:
    stop = StopStatus(request=RequestId("stop-nightly"), state=StopState.CHECKPOINTED, drain=drain)
    beat(interrupted, StageStatus(state=StageState.QUIESCED), stop)
    shown = spark_jobs("status", "--home", interrupted.url).stdout
    assert [word, "stop-nightly:", "checkpointed"] in [line.split() for line in shown.splitlines()]
    assert "quiesced" in shown


def beat(home: UsedHome, stage: StageStatus | dict[StageName, StageStatus], stop: StopStatus | None = None) -> None:
    """Writes a heartbeat of attempt 1 with this stage ``hourly`` or with these stages."""
    stages = {StageName("hourly"): stage} if isinstance(stage, StageStatus) else stage
    status = Status(
        attempt=AttemptNumber(1), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, stages=stages, stop=stop
    )
    write_status(home.files, status)


def test_the_refusal_of_a_home_that_is_a_file_says_so(unused: UsedHome) -> None:
    refused = spark_jobs("status", "--home", unused.entry)
    assert refused.exit_code == 2
    assert "cannot be a directory: it is a file" in refused.stderr


def test_a_blocked_publication_is_shown_with_its_reason_its_remedy_and_how_long_its_rows_are_kept(interrupted: UsedHome) -> None:
    status = Status(attempt=AttemptNumber(1), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, blocked=BLOCKED)
    write_status(interrupted.files, status)
    shown = " ".join(spark_jobs("status", "--home", interrupted.url).stdout.split())
    for part in ("7 rows break positive.", "Waiting: daily.", "Drop the constraint.", "rows kept until 2026-01-01 00:00:00 UTC"):
        assert part in shown
    told = document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["status"]["blocked"]
    assert (told["checkpoint"], told["tries"], told["waiting"]) == (4, 3, ["daily"])
    assert told["error"]["remedy"] == "Drop the constraint."
