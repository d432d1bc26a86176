"""The operator with a fake driver."""

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.facts import log_result, run_facts
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.losses import AcceptLossOperator, BackfillLossOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.orders import StartOrder
from airflow_provider.tasks.driver_lease import DriverLease
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.version_compat import AirflowSkipException
from airflow_provider.waits.first_looks import Next
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import holding
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    CorruptDocumentError,
    DeadlineExceededError,
    HomeInUseError,
    InterruptedRunError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, InputName, LossId, PipelineName, RequestId, RoundNumber, RunId, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import (
    RUN,
    TaskLog,
    a_driver_at_work,
    context,
    driver_has_started,
    failure,
    in_the_worker,
    once,
    operator,
    task_log,
    until,
    waits_deferred,
)
from tests.support.documents import SAMPLES
from tests.support.measured_homes import passes_over, tolerant_status
from tests.support.staged_pipeline import a_manifest

__all__ = ["task_log", "waits_deferred"]


def test_a_run_returns_the_facts_of_its_manifest(homes: Homes) -> None:
    assert carry_out(operator(), context()) == {
        "home": f"file://{homes.path()}",
        "run": RUN,
        "round": 7,
        "attempt": 1,
        "checkpoint": 1,
        "drained": False,
        "completed_at": "2026-01-01T00:00:00+00:00",
        "behind": [],
        "exact": True,
        "blocked": None,
        "violations": {},
        "sinks": {"hourly": {"table": "file:///t/hourly", "version": 3, "rows": 9}},
        "losses": [],
        "budget_left_rows": {},
        "tidied": {},
    }


@in_the_worker
def test_a_task_that_minds_losses_fails_or_is_skipped_until_its_loss_is_accepted(homes: Homes) -> None:
    del homes
    assert carry_out(operator(on_loss="fail"), context())["losses"] == []
    assert carry_out(operator(on_loss="skip"), context())["losses"] == []
    files = StreamPipelineHook().files("flights")
    Channel(files).claim(PipelineName("flights"))
    attempt, ledger = Attempts(files).latest(), LossLedger(files)
    assert attempt is not None
    lost = LostFiles(input=InputName("rows"), stage=StageName("copy"), files=(LostFile(path="file:/in/4.json"),))
    ledger.record(RoundNumber(7), attempt, [lost])
    carry_out(operator(), context())
    with pytest.raises(PipelineRunRefusedError, match="loss 7-1, stage 'copy' of 'rows'") as refused:
        carry_out(operator(on_loss="fail"), context())
    assert "spark-jobs accept 7-1" in str(refused.value)
    skipped = context()
    with pytest.raises(AirflowSkipException, match="These losses are not accepted: 7-1"):
        carry_out(operator(on_loss="skip"), skipped)
    pushed: dict[str, Any] = skipped["ti"].pushed  # type: ignore[attr-defined]
    assert pushed["return_value"]["checkpoint"] == 1
    accept = AcceptLossOperator(task_id="accept", home="flights", losses="7-1", reason="by hand")
    assert accept.execute(context()) == {"home": files.url, "losses": ["7-1"], "open": 0}
    assert accept.execute(context())["losses"] == ["7-1"]
    for choice in ("fail", "skip"):
        carry_out(operator(on_loss=choice), context())


@in_the_worker
def test_a_run_returns_how_many_rows_each_stage_with_a_tolerance_may_still_lose(homes: Homes) -> None:
    del homes
    carry_out(operator(), context())
    files = StreamPipelineHook().files("flights")
    write_status(files, tolerant_status())
    passes_over(LossLedger(files), 4)
    assert carry_out(operator(), context())["budget_left_rows"] == {"hourly": 6, "daily": 10}


@in_the_worker
def test_a_task_that_backfills_requests_a_run_with_its_losses_and_is_skipped_without_any(homes: Homes) -> None:
    del homes
    arguments: dict[str, Any] = {"task_id": "backfill", "entry": "flights.py", "home": "flights", "deferrable": False}
    carry_out(BackfillLossOperator(losses="['7-2', '7-1']", **arguments), context())
    channel = Channel(StreamPipelineHook().files("flights"))
    assert channel.attempts.latest() is not None
    request = channel.request(RequestId("start-1"))
    assert (request.backfill, request.accept_data_loss) == (("7-1", "7-2"), ())
    with pytest.raises(AirflowSkipException, match="no loss to backfill"):
        BackfillLossOperator(losses=[], **arguments).execute(context())


@in_the_worker
def test_an_unknown_loss_is_refused_without_another_try(homes: Homes) -> None:
    del homes
    carry_out(operator(), context())
    Channel(StreamPipelineHook().files("flights")).claim(PipelineName("flights"))
    with pytest.raises(PipelineRunRefusedError, match="has no loss 1-1"):
        AcceptLossOperator(task_id="accept", home="flights", losses=["1-1"], reason="by hand").execute(context())


def test_a_loss_of_the_checkpoint_is_open_until_somebody_accepts_it() -> None:
    lost = LostFiles(id=LossId("7-1"), input=InputName("rows"), stage=StageName("copy"), files=(LostFile(path="/4", rows=3),))
    (answer,) = (sample for sample in SAMPLES if isinstance(sample, StartResponse))
    manifest = a_manifest(1).model_copy(update={"losses": (lost,)})
    for open_losses, is_open in (({LossId("7-1")}, True), (set(), False)):
        (fact,) = run_facts("home", answer, manifest, open_losses=open_losses)["losses"]
        assert fact == {
            "loss": "7-1",
            "source": "rows",
            "stage": "copy",
            "rows_at_most": 3,
            "open": is_open,
            "lost": "1 file with 3 rows, such as /4",
        }


def test_the_task_log_names_the_rows_that_a_round_left_out_and_the_files_that_it_took_away() -> None:
    facts = {
        "run": RUN,
        "checkpoint": 4,
        "sinks": {},
        "behind": ["daily"],
        "blocked": {"waiting": ["hourly"], "since": "2026-01-01T00:00:00+00:00", "summary": "Publication is blocked."},
        "violations": {"copy": {"positive": 1_200}},
        "losses": [{"loss": "1-1", "source": "rows", "stage": "copy", "lost": "1 file with 20 bytes, such as file:/in/4.json"}],
        "tidied": {"rows": {"tidied_at": "2026-01-01T00:00:00+00:00", "left": ["file:/in/5.json"]}},
    }
    log = TaskLog()
    log_result(log, facts, RUN)
    assert log.text.splitlines() == [
        "Publication is blocked. The next start tries to publish it again.",
        "Tables that show less than the others in checkpoint 4: daily",
        "Stage copy: 1,200 rows violate the expectation positive",
        "Loss 1-1: stage copy continued without rows of rows: 1 file with 20 bytes, such as file:/in/4.json",
        "Source rows: the files that were read were archived or deleted at 2026-01-01T00:00:00+00:00",
        "Source rows: 1 files have changed since they were read, and were kept: file:/in/5.json",
    ]


def test_a_run_that_was_answered_is_not_run_again(homes: Homes) -> None:
    first = carry_out(operator(), context())
    assert carry_out(operator("failed"), context()) == first
    assert len(homes.starts()) == 1


def test_another_dag_run_and_another_map_index_are_other_runs(homes: Homes) -> None:
    found = [carry_out(operator(), each)["run"] for each in (context(), context("manual__2"), context(map_index=0))]
    assert len(set(found)) == 3
    assert len(homes.starts()) == 3


def test_a_driver_at_work_for_this_task_is_adopted(homes: Homes) -> None:
    a_driver_at_work(homes)
    finish = once(driver_has_started, (homes.path() / ".go").touch)
    assert carry_out(operator(), context())["attempt"] == 1
    finish.join()
    assert len(homes.starts()) == 1


def test_a_driver_at_work_for_another_run_is_left_alone(homes: Homes) -> None:
    a_driver_at_work(homes, RunId("somebody-else"))
    error = failure(operator(), HomeInUseError)
    assert "somebody-else" in str(error)
    assert "max_active_runs=1" in str(error)
    assert len(homes.starts()) == 1


def test_a_home_that_a_driver_of_another_run_has_just_locked_is_in_use(homes: Homes) -> None:
    other = Channel(StreamPipelineHook().files("flights")).request_start(RunId("somebody-else"), parameters={})
    with holding(homes.path() / DRIVER_LOCK, other.request):
        error = failure(operator(), HomeInUseError)
    assert "a driver works on start-1" in str(error)
    assert not isinstance(error, PipelineRunRefusedError)


def test_a_second_driver_for_the_same_request_waits_for_the_first(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = a_driver_at_work(homes)
    # The first look came before the driver had locked the home, so the open request is submitted and started again.
    monkeypatch.setattr("airflow_provider.operators.stream_pipeline.first_step", lambda look, run: Next.START)
    submit = StreamPipelineHook.submit

    def submit_again(self: StreamPipelineHook, home: str, order: StartOrder) -> Any:
        (homes.path() / "attempts/1.json").rename(homes.path() / "attempts/1.hidden")
        request, second = submit(self, home, order)
        (homes.path() / "attempts/1.hidden").rename(homes.path() / "attempts/1.json")
        until(lambda: second.exit_code == 0)
        (homes.path() / ".go").touch()
        return request, second

    monkeypatch.setattr(StreamPipelineHook, "submit", submit_again)
    assert carry_out(operator(), context())["attempt"] == 1
    assert driver.pid in {start["pid"] for start in homes.starts()}
    assert len(homes.starts()) == 2


def test_a_refused_run_is_not_retried_and_says_what_to_do(homes: Homes) -> None:
    error = failure(operator("refused"), RejectedError)
    assert isinstance(error, PipelineRunRefusedError)
    assert "To do: Correct line 3." in str(error)


def test_a_first_run_that_is_refused_leaves_nothing_in_its_home(homes: Homes) -> None:
    assert "Correct line 3." in str(failure(operator("refused_before_it_began"), RejectedError))
    assert [path.name for path in homes.path().iterdir() if not path.name.startswith(".")] == []
    assert carry_out(operator(), context())["attempt"] == 1


def test_a_corrupt_home_is_not_retried(homes: Homes) -> None:
    assert isinstance(failure(operator("corrupt"), CorruptDocumentError), PipelineRunRefusedError)


def test_the_error_of_a_failed_run_has_its_evidence_and_the_drivers_last_lines(homes: Homes, task_log: TaskLog) -> None:
    error = failure(operator("failed"), InterruptedRunError)
    assert not isinstance(error, PipelineRunRefusedError)
    assert (error.error.exists, error.error.safe, error.error.remedy) == ("Checkpoint 4.", "Its tables.", "Free space.")
    assert error.error.evidence == {"stage": "hourly"}
    assert "noon error out of disk" in task_log.text
    assert "the driver says hello" in task_log.text


def test_the_task_log_says_that_this_host_cannot_read_the_drivers_log(homes: Homes, task_log: TaskLog) -> None:
    DriverLease(StreamPipelineHook(), "flights", task_log).log_driver(AttemptNumber(7), {})
    assert f"The driver has written nothing that {os.uname().nodename} can read" in task_log.text
    assert f"{homes.path()}/logs/7.log" in task_log.text


def test_the_log_shows_progress_and_what_the_run_left(homes: Homes, task_log: TaskLog) -> None:
    a_driver_at_work(homes)
    progress = "stage hourly: running, batch 3, 1,000 rows, 50 rows/s, watermark 2013-01-01 12:00:00Z"
    finish = once(lambda: progress in task_log.text, (homes.path() / ".go").touch)
    carry_out(operator(), context())
    finish.join()
    assert "Attempt 1 of this task is at work" in task_log.text
    assert "Sink hourly: version 3 of file:///t/hourly, 9 rows" in task_log.text


def test_a_retry_after_a_failure_starts_the_next_attempt(homes: Homes) -> None:
    failure(operator("failed"), InterruptedRunError)
    assert carry_out(operator(), context())["attempt"] == 2


@in_the_worker
@pytest.mark.parametrize(
    ("entry", "kind"),
    [("killed", InterruptedRunError), ("unknown", OutcomeUnknownError), ("refused_before_anything", RejectedError)],
)
def test_a_driver_that_died_without_an_answer_is_an_error(homes: Homes, entry: str, kind: type[StreamPipelineError]) -> None:
    assert "left no answer" in str(failure(operator(entry), kind))


def test_a_driver_that_disappears_is_an_error(homes: Homes) -> None:
    task = operator("silent", wait_limits=WaitLimits(silence_s=0.2))
    assert "has not been seen" in str(failure(task, InterruptedRunError))


def test_a_task_tolerates_a_home_that_is_unavailable_for_a_while(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    monkeypatch.setattr(RunTrigger, "log", task_log)
    aside = homes.root.parent / "aside"

    def goes_and_comes_back() -> None:
        homes.path().rename(aside)
        until(lambda: task_log.text.count("The home cannot be read") >= 5)
        aside.rename(homes.path())
        (homes.path() / ".go").touch()

    away = once(lambda: "attempt 1: running" in task_log.text, goes_and_comes_back)
    assert carry_out(operator("waits", wait_limits=WaitLimits(silence_s=0.2)), context())["attempt"] == 1
    away.join()


def test_a_home_that_stays_unavailable_fails_the_task_for_good_and_is_not_created_again(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    monkeypatch.setattr(RunTrigger, "log", task_log)
    aside = homes.root.parent / "aside"
    away = once(lambda: "attempt 1: running" in task_log.text, lambda: homes.path().rename(aside))
    error = failure(operator("waits", wait_limits=WaitLimits(storage_s=2.0)), NotFoundError)
    away.join()
    assert isinstance(error, PipelineRunRefusedError)
    assert not homes.path().exists()
    aside.rename(homes.path())


def test_a_driver_outlives_a_task_that_times_out(homes: Homes) -> None:
    failure(operator("waits", timeout_s=0.1), DeadlineExceededError)
    until(driver_has_started)
    finish = once(driver_has_started, (homes.path() / ".go").touch)
    assert carry_out(operator(), context())["attempt"] == 1
    finish.join()


def test_the_next_attempt_waits_for_a_driver_that_is_about_to_end(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    failure(operator("failed"), InterruptedRunError)
    at_work = iter([True, True, False])
    monkeypatch.setattr("airflow_provider.waits.first_looks.driver_at_work", lambda files: next(at_work, False))
    assert carry_out(operator(), context())["attempt"] == 2
    assert next(at_work, None) is None


def test_a_driver_has_a_session_of_its_own_no_input_and_nothing_of_airflows(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://u:hidden@db/x")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hidden")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "flights")
    carry_out(operator(), context())
    (start,) = homes.starts()
    assert start["session"] == start["pid"] != os.getsid(0)
    assert start["stdin"] == os.devnull
    airflows = {name for name in start["environment"] if "AIRFLOW" in name.upper() and not name.startswith("AIRFLOW_CTX_")}
    assert airflows <= {"AIRFLOW_HOME"}
    assert "AIRFLOW_CTX_DAG_ID" in start["environment"], "which task it works for is no secret"
    assert (homes.path() / "logs/driver-1.out").read_text() == "the driver says hello\n"


def test_the_command_names_home_request_and_settings_and_nothing_else(homes: Homes) -> None:
    carry_out(operator(parameters={"flights": "/data"}, conf={"spark.executor.memory": "2g"}, on_end="suspend"), context())
    assert homes.starts()[0]["argv"] == [
        *("-P", "-m", "spark_jobs", "run", "/pipelines/answers.py", "--home", f"file://{homes.path()}", "--request", "start-1"),
        *("--conf", "spark.executor.memory=2g"),
    ]


def test_tables_to_refresh_are_in_the_request(homes: Homes) -> None:
    carry_out(operator(full_refresh="hourly, daily"), context())
    request = Channel(StreamPipelineHook().files("flights")).request(RequestId("start-1"))
    assert request.full_refresh == ("daily", "hourly")


def test_a_secret_reaches_the_driver_by_its_environment_only(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_API", '{"conn_type": "http", "password": "s3cr3t-value"}')
    facts = carry_out(operator(secrets={"token": "api"}), context())
    (start,) = homes.starts()
    assert start["environment"].pop("SPARK_JOBS_PARAM_TOKEN") == "s3cr3t-value"
    assert "s3cr3t-value" not in repr((start, facts))
    written = [path.read_text() for path in homes.path().rglob("*") if path.is_file() and not path.name.startswith(".started-")]
    assert written
    assert not [text for text in written if "s3cr3t-value" in text]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"home": "/elsewhere/flights"}, AccessDeniedError),
        ({"home": "../flights"}, AccessDeniedError),
        ({"on_end": "explode"}, InvalidParameterError),
        ({"publish": "sometimes"}, InvalidParameterError),
        ({"checkpoint": {"interval": "soon"}}, InvalidParameterError),
        ({"checkpoint": {"intervall": "1 minute"}}, InvalidParameterError),
        ({"checkpoint": "often"}, InvalidParameterError),
        ({"parameters": {"at": object()}}, InvalidParameterError),
        ({"parameters": "flights=/data"}, InvalidParameterError),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, InvalidParameterError),
        ({"secrets": {"token=": "api"}}, InvalidParameterError),
        ({"secrets": {"token": "without_password"}}, InvalidParameterError),
        ({"secrets": {"token": "of_nobody"}}, MissingRequirementError),
        ({"conn_id": "unknown"}, MissingRequirementError),
        ({"conn_id": "no_python"}, MissingRequirementError),
        ({"conn_id": "no_roots"}, AccessDeniedError),
    ],
)
def test_an_argument_that_is_not_allowed_is_refused_before_anything_is_written(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], kind: type[StreamPipelineError]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WITHOUT_PASSWORD", '{"conn_type": "http"}')
    monkeypatch.setenv("AIRFLOW_CONN_NO_PYTHON", connection(home_root=str(homes.root), python="/no/such/python"))
    monkeypatch.setenv("AIRFLOW_CONN_NO_ROOTS", connection())
    error = failure(operator(**arguments), kind)
    assert isinstance(error, PipelineRunRefusedError)
    assert error.error.remedy
    assert list(homes.root.iterdir()) == []


def test_a_lost_task_is_tried_again_unless_its_dag_says_otherwise() -> None:
    assert operator().retries == 3
    assert operator(retries=0).retries == 0
    with DAG("nightly", schedule=None, default_args={"retries": 1}):
        assert operator().retries == 1
    with DAG("mapped", schedule=None) as dag:
        StreamPipelineOperator.partial(task_id="run", entry="/pipelines/answers.py").expand(home=["a", "b"])
    assert dag.get_task("run").retries == 3


def test_empty_fields_of_a_form_leave_the_settings_of_the_pipeline(homes: Homes) -> None:
    assert carry_out(operator(on_end="", publish=""), context())["checkpoint"] == 1


@pytest.mark.parametrize("arguments", [{"wait_for": "never"}, {"poll_interval_s": 0}, {"timeout_s": -1}])
def test_wrong_arguments_in_a_dag_file_are_refused_when_it_is_parsed(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        operator(**arguments)


def test_only_this_user_can_read_the_output_of_a_driver(homes: Homes) -> None:
    carry_out(operator(), context())
    output = Path(homes.path() / "logs/driver-1.out")
    assert output.stat().st_mode & 0o077 == 0
