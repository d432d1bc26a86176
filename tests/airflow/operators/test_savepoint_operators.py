"""Tasks that request a savepoint or a stop of a running pipeline, and tasks that delete a savepoint."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
from airflow.sdk import AssetAlias, Context

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.links import RECORD_KEY
from airflow_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerSavepointOperator,
    ask_once,
)
from airflow_provider.triggers.home import HomeTrigger
from spark_jobs.checkpoint.savepoint import export, verify
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import DRIVER_LOCK, savepoint_path
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import Publish, RunState, StartResponse, StopStatus
from spark_jobs.protocol.errors import DeadlineExceededError, IncompleteError, InterruptedRunError, RejectedError, Retry
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, RunId
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.states import StopState
from spark_jobs.storage.open import open_place
from spark_jobs.waits.limits import LIMITS, WaitLimits
from spark_jobs.waits.requests import RequestLook, RequestWait
from tests.airflow.conftest import connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context, log_of, once, until
from tests.support.answering_driver import LIVE, Driver
from tests.support.asset_events import Events
from tests.support.command_line import UsedHome
from tests.support.object_store import object_store
from tests.support.shaky_locks import ShakyLocks
from tests.support.staged_pipeline import HOURLY, NOW
from tests.support.systems import quick

WAYS = pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
SOON: dict[str, Any] = {"poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout_s": 20.0}


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsedHome:
    """The home of an unbounded pipeline whose driver has ended."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    home = UsedHome(tmp_path, LIVE)
    home.begin()
    return home


@pytest.fixture
def running(used: UsedHome) -> Iterator[UsedHome]:
    """The home of an unbounded pipeline with a running driver."""
    with used.driver():
        yield used


def savepoint(wait_limits: WaitLimits = LIMITS, **arguments: Any) -> TriggerSavepointOperator:
    task = TriggerSavepointOperator(task_id="save", home="home", **(SOON | arguments))
    task.wait_limits = wait_limits
    return task


def stop(wait_limits: WaitLimits = LIMITS, **arguments: Any) -> StopWithSavepointOperator:
    task = StopWithSavepointOperator(task_id="stop", home="home", **(SOON | arguments))
    task.wait_limits = wait_limits
    return task


@WAYS
def test_the_result_names_the_savepoint_with_its_checkpoint_and_versions(running: UsedHome, *, deferrable: bool) -> None:
    with Driver(running):
        facts = carry_out(savepoint(deferrable=deferrable, target="mine"), context())
    assert facts["savepoint"] == f"file://{running.directory}/mine"
    assert (facts["checkpoint"], facts["drained"], facts["sinks"]["hourly"]["version"]) == (1, False, 1)
    assert json.loads(json.dumps(facts)) == facts


def test_a_savepoint_in_an_object_store_is_made_and_deleted_inside_its_root_alone(
    running: UsedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store() as url:
        roots = {"home_root": str(running.directory), "savepoint_root": f"{url}/daily"}
        monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(**roots))
        with Driver(running):
            facts = carry_out(savepoint(target="first"), context())
        assert facts["savepoint"] == f"{url}/daily/first"
        assert verify(open_place(facts["savepoint"])).checkpoint == 1
        with pytest.raises(PipelineRunRefusedError, match="inside none of the connection's savepoint roots"):
            carry_out(savepoint(target=f"{url}/weekly/first"), context())
        dispose = DisposeSavepointOperator(task_id="dispose", savepoint=facts["savepoint"], home="home")
        assert dispose.execute(context()) == {"savepoint": facts["savepoint"]}
        assert open_place(url).names("") == []


@WAYS
def test_the_wait_tolerates_a_storage_that_is_unavailable_for_a_while(
    used: UsedHome, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    log = log_of(monkeypatch, HomeTrigger, TriggerSavepointOperator)

    def goes_away_and_comes_back() -> None:
        locks.go_away()
        until(lambda: "The home cannot be read" in log.text)
        locks.come_back()
        with Driver(used):
            until(lambda: used.files.names("answers"))

    with ShakyLocks(used) as locks:
        pipeline = once(lambda: CheckpointRequests(used.files).open(), goes_away_and_comes_back)
        assert carry_out(savepoint(deferrable=deferrable), context())["checkpoint"] == 1
        pipeline.join()


@WAYS
def test_a_storage_that_stays_unavailable_ends_the_wait(used: UsedHome, *, deferrable: bool) -> None:
    with ShakyLocks(used) as locks:
        pipeline = once(lambda: CheckpointRequests(used.files).open(), locks.go_away)
        with pytest.raises(PipelineRunError, match="Not a directory"):
            carry_out(savepoint(deferrable=deferrable, wait_limits=WaitLimits(storage_s=2.0)), context())
        pipeline.join()


def test_an_alias_gets_events_for_the_tables_that_a_savepoint_made_public(running: UsedHome) -> None:
    """A stop uses the same operator."""
    told, alias = Events(), AssetAlias("tables")
    with Driver(running):
        facts = savepoint(deferrable=False, outlets=[alias]).execute(cast(Context, {**context(), "outlet_events": {alias: told}}))
    table, version = (facts["sinks"]["hourly"][name] for name in ("table", "version"))
    assert told.added == [
        (
            table,
            {"home": running.files.url, "sink": "hourly", "checkpoint": 1, "version": version, "behind": False, "exact": True},
        )
    ]
    assert version is not None


@WAYS
def test_every_try_of_a_task_asks_for_one_savepoint_and_another_task_for_its_own(running: UsedHome, *, deferrable: bool) -> None:
    with Driver(running):
        first = carry_out(savepoint(deferrable=deferrable), context())
        again = carry_out(savepoint(deferrable=deferrable), context(token="second try"))
        other = carry_out(savepoint(deferrable=deferrable), context(run_id="another run"))
    assert first == again
    assert (first["checkpoint"], other["checkpoint"]) == (1, 2)


@pytest.mark.parametrize(("given", "drains"), [(False, False), (True, True), ("true", True), ("False", False), ("", False)])
def test_the_request_of_a_stop_says_whether_it_drains_also_if_a_form_decides(
    running: UsedHome, given: bool | str, *, drains: bool
) -> None:
    with pytest.raises(PipelineRunError):
        carry_out(stop(drain=given, deferrable=False, timeout_s=0.0), context())
    (asked,) = CheckpointRequests(running.files).open()
    assert (asked.wanted.value, asked.drain) == ("stop", drains)


def test_a_try_after_an_answer_with_an_error_makes_a_new_request(running: UsedHome) -> None:
    task = savepoint(deferrable=False)
    with Driver(running, DeadlineExceededError("Checkpoint expired before completing.")), pytest.raises(PipelineRunError):
        carry_out(task, context())
    with Driver(running):
        assert carry_out(task, context(token="second try"))["checkpoint"] == 1
    assert len([name for name in running.files.names("answers") if name.startswith("savepoint")]) == 2


def test_a_home_or_a_target_outside_the_roots_is_refused_before_anything_is_requested(running: UsedHome) -> None:
    for task in (savepoint(target="/elsewhere"), TriggerSavepointOperator(task_id="save", home="/elsewhere")):
        with pytest.raises(PipelineRunRefusedError):
            carry_out(task, context())
    assert CheckpointRequests(running.files).open() == ()


def test_a_request_that_is_refused_leaves_links_to_its_home(used: UsedHome) -> None:
    given = context()
    with pytest.raises(PipelineRunError):  # no driver is running
        carry_out(savepoint(), given)
    assert cast(Any, given["ti"]).pushed[RECORD_KEY]["homes"] == {f"file://{used.directory}/home": None}


def test_an_answer_that_was_deleted_before_the_task_is_resumed_is_retried(running: UsedHome) -> None:
    request = ask_once(running.files, Wanted.SAVEPOINT, RunId("airflow/flights/now/run"))
    with pytest.raises(PipelineRunError, match="no longer has an answer") as caught:
        savepoint().execute_complete(context(), {"home": f"file://{running.directory}/home", "request": request})
    assert caught.value.error.retry is Retry.WITH_BACKOFF


def test_a_retry_between_two_attempts_makes_a_new_request(used: UsedHome) -> None:
    with pytest.raises(PipelineRunError, match="did not finish") as caught:
        carry_out(stop(), context())
    assert not isinstance(caught.value, PipelineRunRefusedError)
    assert CheckpointRequests(used.files).open() == ()


def test_a_driver_that_starts_just_after_the_check_gets_the_request(running: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([False, True])
    monkeypatch.setattr("spark_jobs.control.checkpoint_requests.driver_at_work", lambda files: next(found))
    request = ask_once(running.files, Wanted.STOP, RunId("a task"))
    assert [asked.request for asked in CheckpointRequests(running.files).open()] == [request]


def test_a_retry_before_the_first_attempt_of_a_running_driver_makes_a_new_request(tmp_path: Path) -> None:
    starting = quick(tmp_path / "starting")
    with pytest.raises(RejectedError):
        ask_once(starting, Wanted.STOP, RunId("a task"))
    with holding(tmp_path / "starting" / DRIVER_LOCK, "start-1"), pytest.raises(InterruptedRunError, match="No attempt"):
        ask_once(starting, Wanted.STOP, RunId("a task"))


def test_a_pipeline_that_has_ended_well_is_not_stopped(used: UsedHome) -> None:
    answer = StartResponse(
        request=RequestId("start-1"),
        attempt=AttemptNumber(1),
        run=RunId("monday"),
        checkpoint=CheckpointId(1),
        sinks={},
        answered_at=NOW,
    )
    Channel(used.files).respond(answer)
    with pytest.raises(PipelineRunRefusedError, match="No attempt is running"):
        carry_out(stop(), context())


def test_a_task_waits_for_its_open_request_although_no_driver_runs(used: UsedHome) -> None:
    with used.driver(), pytest.raises(PipelineRunError):
        carry_out(stop(deferrable=False, timeout_s=0.0), context())
    with pytest.raises(PipelineRunError, match="No driver has been at work"):
        carry_out(stop(restart_timeout_s=0.1), context(token="second try"))


@WAYS
def test_a_stop_that_was_interrupted_after_its_checkpoint_is_incomplete_and_names_its_savepoint(
    used: UsedHome, *, deferrable: bool
) -> None:
    with used.driver(), pytest.raises(PipelineRunError):
        carry_out(stop(deferrable=False, timeout_s=0.0), context())
    (asked,) = CheckpointRequests(used.files).open()
    used.staged.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EVERY_CHECKPOINT, request=asked.request)
    made = used.files.below(savepoint_path(asked.request))
    export(used.files, CheckpointId(1), made, request=asked.request)
    with pytest.raises(PipelineRunError, match="So is its savepoint") as caught:
        carry_out(stop(restart_timeout_s=0.1, deferrable=deferrable), context(token="second try"))
    assert isinstance(caught.value.error, IncompleteError)
    assert caught.value.error.evidence == {"request": asked.request, "checkpoint": 1, "savepoint": made.url}


def test_time_in_which_the_home_was_not_read_does_not_count_as_absence_of_the_driver() -> None:
    wait = waits()
    assert wait.judge(GONE, 0.0) is None
    wait.home_is_back(0.0)
    assert wait.judge(GONE, 200.0) is None
    with pytest.raises(InterruptedRunError):
        wait.judge(GONE, 210.0)


ANSWERED, OPEN, GONE = RequestLook(True, True), RequestLook(False, True), RequestLook(False, False)


def waits(request: str = "stop-a") -> RequestWait:
    return RequestWait(open_place("/home"), request, 10.0)


def test_a_task_waits_for_a_driver_that_is_seen_again_in_time() -> None:
    wait = waits()
    looks = ((GONE, 0.0), (GONE, 9.0), (OPEN, 11.0), (GONE, 12.0))
    assert [wait.judge(look, now_s) for look, now_s in looks] == [None] * 4
    with pytest.raises(InterruptedRunError):
        wait.judge(GONE, 22.0)


def test_after_a_stop_the_task_waits_for_the_end_of_the_driver_but_not_for_ever() -> None:
    wait = waits()
    assert wait.judge(ANSWERED, 0.0) is None
    assert wait.judge(RequestLook(True, False), 1.0) == {}
    assert waits("savepoint-a").judge(ANSWERED, 0.0) == {}
    assert wait.judge(ANSWERED, 61.0) == {}


def test_a_task_does_not_wait_for_a_driver_that_keeps_running_after_its_answer() -> None:
    assert waits().judge(RequestLook(True, True, runs_on=True), 0.0) == {}


@pytest.mark.parametrize(
    ("error", "begun", "over"), [(None, 1, False), (DeadlineExceededError("It expired."), 1, True), (None, 2, True)]
)
def test_the_driver_at_work_is_not_about_to_end_if_a_stop_has_failed_or_another_attempt_has_begun(
    running: UsedHome, error: DeadlineExceededError | None, begun: int, *, over: bool
) -> None:
    request = RequestId("stop-a")
    look = RequestWait(running.files, request, 10.0).look
    CheckpointRequests(running.files).ask(request)
    assert not look().is_over
    CheckpointRequests(running.files).answer(
        CheckpointResponse(
            request=request,
            attempt=AttemptNumber(1),
            checkpoint=None if error else CheckpointId(1),
            error=report_error(error) if error else None,
            answered_at=NOW,
        )
    )
    for attempt in range(2, begun + 1):
        running.begin(attempt)
    assert look().is_over is over


def test_a_wait_fails_if_the_answer_to_its_request_was_deleted(running: UsedHome) -> None:
    """The triggerer was down for a long time, and many others have made requests since. The wait would never end."""
    with pytest.raises(InterruptedRunError, match="any more"):
        RequestWait(running.files, "savepoint-a", 10.0).look()


def test_an_answer_that_arrives_during_the_first_look_counts(running: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    request, requests = RequestId("savepoint-a"), CheckpointRequests(running.files)
    requests.ask(request)

    def answered_meanwhile(self: CheckpointRequests, asked: RequestId) -> bool:
        self.answer(CheckpointResponse(request=asked, attempt=AttemptNumber(1), checkpoint=CheckpointId(1), answered_at=NOW))
        return False

    monkeypatch.setattr(CheckpointRequests, "is_asked", answered_meanwhile)
    assert RequestWait(running.files, request, 10.0).look().answered


def test_an_answer_that_exists_when_the_time_is_up_counts() -> None:
    assert waits("savepoint-a").result(ANSWERED, 0.0, -1.0, 60.0) == {}
    with pytest.raises(DeadlineExceededError):
        waits().result(OPEN, 0.0, 0.0, 60.0)


@WAYS
def test_the_wait_logs_each_step_of_a_stop_once(running: UsedHome, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool) -> None:
    log = log_of(monkeypatch, HomeTrigger, StopWithSavepointOperator)
    told = [StopState.ACKNOWLEDGED, StopState.QUIESCED, StopState.CHECKPOINTED]

    def says(line: str) -> Callable[[], bool]:
        return lambda: line in log.text

    def goes_on() -> None:
        until(lambda: CheckpointRequests(running.files).open())
        (asked,) = CheckpointRequests(running.files).open()
        for state in told:
            stop = StopStatus(request=asked.request, state=state, drain=False)
            running.beat(RunState.STOPPING, stop=stop)
            until(says(f"{asked.request}: {state.value}"))
        answer = CheckpointResponse(
            request=asked.request, attempt=AttemptNumber(1), checkpoint=CheckpointId(1), answered_at=NOW, sinks={}
        )
        CheckpointRequests(running.files).answer(answer)

    pipeline = Thread(target=goes_on)
    pipeline.start()
    carry_out(stop(deferrable=deferrable, wait_limits=WaitLimits(driver_end_s=0.0)), context())
    pipeline.join()
    lines = [line for line in log.text.splitlines() if line.startswith("attempt 1: stopping")]
    assert [line.rpartition(": ")[2] for line in lines] == [state.value for state in told]


def a_savepoint(home: UsedHome, place: str) -> Path:
    """Creates an unfinished savepoint whose directory also has a foreign file."""
    directory = home.directory / place
    (directory / "state").mkdir(parents=True)
    (directory / "exporting.json").write_text("{}")
    (directory / "state/1.zip").write_text("x")
    return directory


def dispose(savepoint: str, home: Any = "home") -> dict[str, Any]:
    return dict(carry_out(DisposeSavepointOperator(task_id="dispose", savepoint=savepoint, home=home), context()))


def test_a_savepoint_that_is_deleted_twice_is_no_error(used: UsedHome) -> None:
    directory = a_savepoint(used, "monday")
    for _ in range(2):
        assert dispose("monday") == {"savepoint": f"file://{directory}"}
        assert not directory.exists()


def test_a_savepoint_that_one_of_the_homes_needs_is_kept(running: UsedHome) -> None:
    directory = a_savepoint(running, "monday")
    with pytest.raises(PipelineRunError):
        carry_out(savepoint(target="monday", deferrable=False, timeout_s=0.0), context())
    with pytest.raises(PipelineRunRefusedError, match="which is not answered yet"):
        dispose("monday", home=["home"])
    assert (directory / "state/1.zip").exists()


@pytest.mark.parametrize(
    ("place", "home"), [("/elsewhere", "home"), ("monday", "/elsewhere"), ("monday", "mistyped"), ("home", "home")]
)
def test_a_path_outside_the_roots_or_without_a_savepoint_or_a_wrong_home_deletes_nothing(
    used: UsedHome, place: str, home: str
) -> None:
    directory = a_savepoint(used, "monday")
    with pytest.raises(PipelineRunRefusedError):
        dispose(place, home)
    assert (directory / "state/1.zip").exists()
    assert used.files.names("attempts")
