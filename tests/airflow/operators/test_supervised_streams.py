"""A task that supervises an unbounded pipeline, with a fake driver."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk import RetryAction

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.savepoint import StopWithSavepointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.retry import PipelineRetryPolicy
from airflow_provider.triggers.home import failed
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.version_compat import TaskDeferred
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    InterruptedRunError,
    RejectedError,
    RestartsExhaustedError,
    RunCancelledError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.waits.limits import WaitLimits
from tests.airflow import fake_driver
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out, first_event, restarted
from tests.airflow.flights import (
    GIVEN,
    RUN,
    TaskLog,
    a_driver_at_work,
    context,
    driver_has_started,
    once,
    operator,
    task_log,
    until,
    waits_deferred,
)

__all__ = ["task_log", "waits_deferred"]
DELAY_S = fake_driver.STRATEGY.delay_ms / 1000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes waits consider a silent driver lost after a short time."""
    monkeypatch.setitem(GIVEN, "wait_limits", WaitLimits(silence_s=0.3))


def channel() -> Channel:
    return Channel(StreamPipelineHook().files("flights"))


def ended(task: StreamPipelineOperator, kind: type[StreamPipelineError]) -> PipelineRunError:
    """Runs a task and returns its error."""
    with pytest.raises(PipelineRunError) as caught:
        carry_out(task, context())
    assert type(caught.value.error) is kind
    return caught.value


def a_failed_attempt(homes: Homes) -> None:
    """Creates a failed attempt of an earlier try. The next driver runs until a test lets it end."""
    a_driver_at_work(homes, entry="live_waits")
    AttemptLease(StreamPipelineHook().files("flights"), AttemptNumber(1)).take("a try that is gone")
    channel().respond_failure(channel().request(start_request_id(AttemptNumber(1))), fake_driver.ERRORS["failed"])
    (homes.path() / ".go").touch()
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    (homes.path() / ".go").unlink()


def is_at_attempt(number: int) -> bool:
    status = StreamPipelineHook().status("flights")
    return driver_has_started() and status is not None and status.attempt == number


def test_a_driver_that_is_lost_twice_is_started_again_by_the_strategy_in_one_try(homes: Homes, task_log: TaskLog) -> None:
    finish = once(lambda: is_at_attempt(3), (homes.path() / ".go").touch)
    assert carry_out(operator("live_flaky"), context())["attempt"] == 3
    finish.join()
    restarts = [channel().request(start_request_id(AttemptNumber(number))).restarts for number in (1, 2, 3)]
    assert [each and each.restarts for each in restarts] == [None, 1, 2]
    begun = [channel().attempts.read(AttemptNumber(number)).started_at for number in (1, 2, 3)]
    assert all((after - before).total_seconds() >= DELAY_S for before, after in pairwise(begun))
    assert "Attempt 1 failed; restart 1 by the pipeline's strategy follows." in task_log.text


def test_an_exhausted_restart_strategy_fails_the_task_without_another_try(homes: Homes) -> None:
    error = ended(operator("live_killed"), RestartsExhaustedError)
    assert isinstance(error, PipelineRunRefusedError)
    assert "fixed-delay allows 2 restarts" in str(error)
    assert len(homes.starts()) == 3


def test_a_cleared_task_counts_its_restarts_from_zero(homes: Homes) -> None:
    ended(operator("live_killed"), RestartsExhaustedError)
    ended(operator("live_killed"), RestartsExhaustedError)
    assert len(homes.starts()) == 6


def test_a_driver_that_answers_with_a_failure_is_started_again(homes: Homes) -> None:
    error = ended(operator("live_failed"), RestartsExhaustedError)
    assert "A stage failed." in str(error)
    assert (error.error.exists, error.error.safe) == ("Checkpoint 4.", "Its tables.")
    assert len(homes.starts()) == 3


def test_a_full_disk_of_the_driver_is_not_retried_by_airflow(homes: Homes) -> None:
    ended(operator("live_full"), RestartsExhaustedError)
    assert len(homes.starts()) == 3


def stop(**arguments: Any) -> StopWithSavepointOperator:
    given: dict[str, Any] = {"poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout_s": 20.0}
    return StopWithSavepointOperator(task_id="stop", home="flights", **(given | arguments))


def stopped_once(homes: Homes, facts: dict[str, Any]) -> bool:
    """Checks that one stop with one checkpoint was made. Returns True if it took two attempts."""
    names = channel().files.names
    assert [name for name in names("requests") if not name.startswith("start")] == [], "an answered request is deleted"
    assert names("answers") == [f"{facts['request']}.json"]
    assert (facts["checkpoint"], names("manifests")) == (1, ["1.json"])
    return len(homes.starts()) == 2


def test_the_next_attempt_finishes_a_half_done_stop_in_one_try_of_each_task(homes: Homes) -> None:
    stopped: list[dict[str, Any]] = []
    stopping = once(driver_has_started, lambda: stopped.append(carry_out(stop(), context("the stop's"))))
    facts = carry_out(operator("live_incomplete"), context())
    stopping.join()
    assert (facts["attempt"], facts["checkpoint"]) == (2, 1)
    assert stopped_once(homes, stopped[0])


def test_a_retry_of_a_half_done_stop_finishes_it_and_never_requests_a_second_stop(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_incomplete")
    with pytest.raises(PipelineRunError, match="No driver has been at work") as caught:
        carry_out(stop(restart_timeout_s=0.1), context("the stop's"))
    assert PipelineRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.RETRY
    answer = channel().response(start_request_id(AttemptNumber(1)))
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "IncompleteError"
    assert carry_out(operator("live_incomplete"), context(token="next try"))["checkpoint"] == 1
    assert stopped_once(homes, carry_out(stop(), context("the stop's", token="next try")))


def test_an_error_that_cannot_heal_fails_the_task_at_once(homes: Homes) -> None:
    assert isinstance(ended(operator("live_refused"), RejectedError), PipelineRunRefusedError)
    assert len(homes.starts()) == 1


def test_a_pipeline_whose_inputs_end_is_left_to_airflows_retries(homes: Homes) -> None:
    assert not isinstance(ended(operator("failed"), InterruptedRunError), PipelineRunRefusedError)
    assert len(homes.starts()) == 1


def test_a_cancelled_pipeline_is_not_started_again(homes: Homes) -> None:
    def cancel() -> None:
        owners = AttemptLease(StreamPipelineHook().files("flights"), AttemptNumber(1))
        owners.cancel(owners.take("a person").owner, "it costs too much")

    cancelling = once(driver_has_started, cancel)
    error = ended(operator("live_waits"), RunCancelledError)
    cancelling.join()
    assert isinstance(error, PipelineRunRefusedError)
    assert "it costs too much" in str(error)
    assert len(homes.starts()) == 1


def test_a_try_that_dies_in_the_restart_delay_leaves_the_restart_to_the_next_try(homes: Homes, task_log: TaskLog) -> None:
    """The next try waits for the remaining time, and requests the restart that the strategy has chosen."""
    a_failed_attempt(homes)
    finish = once(lambda: is_at_attempt(2), (homes.path() / ".go").touch)
    assert carry_out(operator("live_waits"), context(token="the next try"))["attempt"] == 2
    finish.join()
    second = channel().request(start_request_id(AttemptNumber(2)))
    assert second.restarts is not None
    assert second.restarts.restarts == 1


def test_the_triggerer_waits_for_a_long_restart_delay_and_continues_it_after_its_own_restart(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, waits_deferred: bool
) -> None:
    if not waits_deferred:
        return
    monkeypatch.setattr("airflow_provider.operators.stream_pipeline.SETTLE_S", 0.0)
    began_s = time.monotonic()
    with pytest.raises(TaskDeferred) as caught:
        operator("live_failed").execute(context())
    for _ in range(2):
        event = asyncio.run(first_event(restarted(caught.value.trigger, settle_s=0.0))).payload
        assert event["error"]["failed"] == "A stage failed."
    assert time.monotonic() - began_s >= DELAY_S
    assert len(homes.starts()) == 1


def test_a_wait_ends_at_its_deadline_before_a_restart_that_is_due_later(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fake_driver.RESTART_DELAY_MS, "3600000")
    a_failed_attempt(homes)
    began_s = time.monotonic()
    error = ended(operator("live_waits", timeout_s=1.0), DeadlineExceededError)
    assert "restart is due later than 1 s" in str(error)
    assert not isinstance(error, PipelineRunRefusedError)
    assert time.monotonic() - began_s < 10.0


def test_restarts_do_not_extend_the_time_of_a_try(homes: Homes, waits_deferred: bool) -> None:
    """Otherwise each lost driver would restart the time limit."""
    if not waits_deferred:
        return
    a_failed_attempt(homes)
    began_at = time.time() - 100.0
    error = failed(fake_driver.ERRORS["failed"])
    event = {"home": f"file://{homes.path()}", "attempt": 1} | error
    with pytest.raises(TaskDeferred) as caught:
        operator("live_waits", timeout_s=600.0).execute_complete(context(), event, began_at=began_at, owner=1)
    assert isinstance(caught.value.trigger, RunTrigger)
    assert (caught.value.trigger.attempt, caught.value.trigger.deadline_at) == (2, began_at + 600.0)
    assert caught.value.kwargs == {"began_at": began_at, "owner": 1}


def test_a_kill_in_the_restart_delay_ends_the_task_and_no_driver_is_started(homes: Homes, waits_deferred: bool) -> None:
    if waits_deferred:
        return
    task = operator("live_flaky")
    killer = once(lambda: channel().response(start_request_id(AttemptNumber(1))), task.on_kill)
    assert "The task was killed" in str(ended(task, InterruptedRunError))
    killer.join()
    assert len(homes.starts()) == 1


def test_a_trigger_without_the_lease_answers_no_request(homes: Homes) -> None:
    driver = a_driver_at_work(homes, entry="live_waits")
    hook = StreamPipelineHook()
    for token in ("a try that is gone", "the next try"):
        AttemptLease(hook.files("flights"), AttemptNumber(1)).take(token)
    driver.kill()
    trigger = RunTrigger(
        home=f"file://{homes.path()}",
        request="start-1",
        attempt=1,
        owner=1,
        deadline_at=None,
        timeout_s=None,
        poll_interval_s=0.02,
        max_poll_interval_s=0.1,
        cancel_on_kill=True,
        settle_s=0.0,
    )
    event = asyncio.run(first_event(trigger)).payload
    assert event["error"]["error"] == "InterruptedRunError"
    assert channel().response(start_request_id(AttemptNumber(1))) is None


def test_a_task_that_waits_for_running_ends_once_its_pipeline_runs_and_leaves_it_running(homes: Homes, task_log: TaskLog) -> None:
    facts = carry_out(operator("live_waits", wait_for="running"), context())
    assert facts == {"home": f"file://{homes.path()}", "run": RUN, "attempt": 1, "checkpoint": None}
    assert StreamPipelineHook().is_at_work("flights")
    assert "Attempt 1 is running, and is left at work." in task_log.text


def test_a_task_that_waits_for_submitted_ends_once_a_driver_was_started(homes: Homes) -> None:
    assert carry_out(operator("live_slow", wait_for="submitted"), context())["attempt"] == 1
    until(homes.starts)
    assert channel().attempts.numbers() == []
    for name in (".begin", ".go"):
        (homes.path() / name).touch()
    until(lambda: channel().response(start_request_id(AttemptNumber(1))))


@pytest.mark.parametrize("wait_for", ["running", "submitted"])
def test_a_cleared_task_finds_the_pipeline_that_it_left_running(homes: Homes, wait_for: str) -> None:
    first = carry_out(operator("live_waits", wait_for=wait_for), context())
    until(driver_has_started)
    assert carry_out(operator("live_waits", wait_for=wait_for), context(token="cleared")) == first
    assert len(homes.starts()) == 1


@pytest.mark.parametrize("wait_for", ["running", "submitted"])
def test_a_cleared_task_returns_the_result_of_a_run_that_has_ended(homes: Homes, wait_for: str) -> None:
    carry_out(operator("answers", wait_for=wait_for), context())
    until(lambda: channel().response(start_request_id(AttemptNumber(1))))
    assert carry_out(operator("answers", wait_for=wait_for), context())["checkpoint"] == 1


def test_a_task_that_waits_only_for_running_does_not_supervise_the_pipeline(homes: Homes) -> None:
    """The pipeline may fail before it runs. Airflow's retries then start it again, with their own count."""
    error = ended(operator("live_failed_at_once", wait_for="running"), InterruptedRunError)
    assert not isinstance(error, PipelineRunRefusedError)
    assert len(homes.starts()) == 1
    carry_out(operator("live_waits", wait_for="running"), context())
    assert channel().request(start_request_id(AttemptNumber(2))).restarts is None


def test_a_driver_that_shall_outlive_its_task_is_refused_in_a_container_that_ends_with_the_task(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    error = ended(operator("live_waits", wait_for="running", allow_driver_in_pod=True), RejectedError)
    assert "would end with this task's container" in str(error)
    assert list(homes.root.iterdir()) == []


def test_another_run_is_refused_while_the_pipeline_still_runs(homes: Homes) -> None:
    carry_out(operator("live_waits", wait_for="running"), context())
    with pytest.raises(PipelineRunError, match="in use"):
        carry_out(operator("live_waits", wait_for="running"), context("manual__2"))
