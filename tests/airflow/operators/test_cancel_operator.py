"""Tasks that cancel a pipeline, with a fake driver."""

import json
from typing import Any

import psutil
import pytest

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.retry import RETRIES
from airflow_provider.tasks.driver_lease import DriverLease
from airflow_provider.triggers.home import HomeTrigger
from airflow_provider.version_compat import TaskDeferred
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import ConflictError, DeadlineExceededError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, RunId, start_request_id
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.waits.limits import WaitLimits
from tests.airflow import fake_driver
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.fake_driver import ERRORS
from tests.airflow.flights import GIVEN, RUN, a_driver_at_work, context, driver_has_started, log_of, once, operator, until
from tests.support.shaky_locks import bring_back, take_away


def cancel(token: str = "first try", run_id: str = "now", **arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"home": "flights", "poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout_s": 20.0}
    task = CancelPipelineOperator(task_id="cancel", **(given | arguments))
    return dict(carry_out(task, context(run_id, token=token)))


def channel() -> Channel:
    return Channel(StreamPipelineHook().files("flights"))


def answered(number: int) -> str | None:
    """Returns the name of the error with which an attempt was answered, or None."""
    answer = channel().response(start_request_id(AttemptNumber(number)))
    return None if answer is None or answer.error is None else answer.error.error


def a_supervised_pipeline(homes: Homes, entry: str = "live_waits") -> Any:
    """Starts a task in another thread that waits for a running driver. Returns the thread and the errors that end the task."""
    ended: list[BaseException] = []

    def supervise() -> None:
        try:
            carry_out(operator(entry), context())
        except PipelineRunError as error:
            ended.append(error)

    return once(lambda: True, supervise), ended


@pytest.fixture(params=[True, False], ids=["deferred", "in the worker"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the supervising task wait in its worker and deferred."""
    monkeypatch.setitem(GIVEN, "deferrable", request.param)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes waits consider a silent driver lost after a short time."""
    monkeypatch.setitem(GIVEN, "wait_limits", WaitLimits(silence_s=0.3))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("entry", ["live_waits", "waits"], ids=["unbounded", "bounded"])
def test_a_cancelled_driver_ends_and_its_task_neither_starts_another_nor_retries(homes: Homes, entry: str) -> None:
    supervising, ended = a_supervised_pipeline(homes, entry)
    until(driver_has_started)
    facts = cancel(deferrable=False)
    supervising.join()
    assert facts == {"home": f"file://{homes.path()}", "attempt": 1, "run": RUN, "cancelled": True, "checkpoint": None}
    assert not StreamPipelineHook().is_at_work("flights")
    (error,) = ended
    assert isinstance(error, PipelineRunRefusedError)
    assert isinstance(error.error, RunCancelledError)
    assert "airflow/flights/now/run has cancelled it" in str(error)
    assert len(homes.starts()) == 1


def test_a_cancel_waits_in_the_triggerer_until_the_driver_has_ended(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_waits")
    assert cancel()["cancelled"]
    assert not StreamPipelineHook().is_at_work("flights")


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_a_wait_for_a_drivers_end_logs_each_activity_once(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    log = log_of(monkeypatch, HomeTrigger, CancelPipelineOperator)
    process = a_driver_at_work(homes, entry="live_stubborn")
    killer = once(lambda: "attempt 1: running" in log.text, process.kill)
    assert cancel(deferrable=deferrable)["cancelled"]
    killer.join()
    assert log.text.count("attempt 1: running") == 1


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_the_wait_tolerates_a_storage_that_is_unavailable_for_a_while(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    log = log_of(monkeypatch, HomeTrigger, CancelPipelineOperator)
    process = a_driver_at_work(homes, entry="live_stubborn")
    locks, aside = homes.path() / "work", homes.root.parent / "aside"

    def goes_away_and_comes_back() -> None:
        take_away(locks, aside)
        until(lambda: "The home cannot be read" in log.text)
        bring_back(locks, aside)
        process.kill()

    storage = once(lambda: "attempt 1: running" in log.text, goes_away_and_comes_back)
    assert cancel(deferrable=deferrable)["cancelled"]
    storage.join()


def test_the_next_try_of_a_cancel_does_not_end_an_attempt_that_was_started_since(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_waits")
    first = cancel()
    a_driver_at_work(homes, entry="live_waits")
    until(lambda: channel().attempts.numbers() == [1, 2])
    assert cancel("second try") == first
    assert StreamPipelineHook().is_at_work("flights")
    assert cancel(run_id="another")["attempt"] == 2


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_a_cancel_ends_the_running_driver_although_another_start_was_requested_since(homes: Homes, *, deferrable: bool) -> None:
    for token, attempt in (("first task", 1), ("second task", 3)):
        a_driver_at_work(homes, entry="live_waits")
        refused = channel().request_start(RunId("by hand"), parameters={})
        assert cancel(run_id=token, deferrable=deferrable)["attempt"] == attempt
        assert not StreamPipelineHook().is_at_work("flights")
        assert (answered(attempt), answered(refused.attempt)) == ("RunCancelledError", "RunCancelledError")


def test_a_cancel_ends_the_running_driver_although_another_start_was_refused_since(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_waits")
    refused = channel().request_start(RunId("by hand"), parameters={})
    channel().respond_failure(refused, ConflictError("Another driver is at work."))
    assert cancel()["attempt"] == 1
    assert answered(1) == "RunCancelledError"


def test_a_cancel_without_a_running_driver_does_nothing(homes: Homes) -> None:
    nothing = {"home": f"file://{homes.path()}", "attempt": None, "run": None, "cancelled": False, "checkpoint": None}
    assert cancel() == nothing
    carry_out(operator("answers"), context())
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    assert cancel() == nothing | {"checkpoint": 1}
    assert [name for name in channel().files.names("requests") if name.startswith("cancel")] == []


def test_a_driver_that_dies_after_a_cancel_is_not_started_again(homes: Homes) -> None:
    process = a_driver_at_work(homes, entry="live_stubborn")
    killer = once(lambda: AttemptLease(channel().files, AttemptNumber(1)).cancelled(), process.kill)
    assert cancel()["cancelled"]
    killer.join()
    assert answered(1) == "RunCancelledError"


@pytest.mark.usefixtures("both_ways")
def test_a_task_that_notices_the_loss_of_a_cancelled_driver_first_starts_no_other(homes: Homes) -> None:
    supervising, ended = a_supervised_pipeline(homes, "live_stubborn")
    until(driver_has_started)
    until(lambda: AttemptLease(channel().files, AttemptNumber(1)).newest())
    with pytest.raises(PipelineRunError, match="has not ended"):
        cancel(timeout_s=0.0, deferrable=False)
    live = channel().attempts.latest()
    assert live is not None
    psutil.Process(live.process).kill()
    supervising.join()
    (error,) = ended
    assert isinstance(error, PipelineRunRefusedError)
    assert len(homes.starts()) == 1


def test_a_driver_that_is_cancelled_before_it_begins_never_starts(homes: Homes) -> None:
    asked = channel().request_start(RUN, parameters={})
    facts = cancel()
    assert (facts["attempt"], facts["cancelled"], answered(asked.attempt)) == (1, True, "RunCancelledError")


def cancelled_before_its_restart(homes: Homes, monkeypatch: pytest.MonkeyPatch, entry: str) -> str:
    """Returns the error of a task whose pipeline has failed and was cancelled before its restart."""
    monkeypatch.setenv(fake_driver.RESTART_DELAY_MS, "1500")
    supervising, ended = a_supervised_pipeline(homes, entry)
    until(lambda: answered(1))
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    assert cancel(deferrable=False)["cancelled"]
    supervising.join()
    (error,) = ended
    assert isinstance(error, PipelineRunRefusedError)
    assert len(homes.starts()) == 1
    return str(error)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", ["failed", "full", "declined"])
def test_a_cancel_prevents_a_restart_that_is_due_later(homes: Homes, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The same holds if the driver failed with an error that a wait may also fail with."""
    said = cancelled_before_its_restart(homes, monkeypatch, f"live_{kind}")
    assert "has cancelled it" in said
    assert ERRORS[kind].failed in said


@pytest.mark.usefixtures("both_ways")
def test_a_cancel_prevents_a_restart_although_the_first_read_of_the_home_did_not_show_the_cancel(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DriverLease, "later_cancel", lambda *_: None)
    assert "has cancelled it" in cancelled_before_its_restart(homes, monkeypatch, "live_failed")


def a_try_whose_time_is_up(entry: str) -> None:
    with pytest.raises(PipelineRunError) as caught:
        carry_out(operator(entry, timeout_s=0.5), context())
    assert isinstance(caught.value.error, DeadlineExceededError)


def assert_only_a_clear_goes_on(homes: Homes) -> None:
    with pytest.raises(PipelineRunRefusedError) as caught:
        carry_out(operator("live_waits", timeout_s=5.0), context(token="retry", try_number=2))
    assert isinstance(caught.value.error, RunCancelledError)
    assert "has cancelled it" in str(caught.value)
    assert len(homes.starts()) == 1
    cleared = context(token="cleared", try_number=3, max_tries=2 + RETRIES)
    assert carry_out(operator("answers"), cleared)["attempt"] == 2


def test_a_retry_of_a_failed_run_does_not_undo_a_cancel(homes: Homes) -> None:
    """Airflow retries failed runs of bounded inputs. No driver runs until the next try."""
    with pytest.raises(PipelineRunError, match="A stage failed."):
        carry_out(operator("failed"), context())
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    assert cancel()["cancelled"]
    assert_only_a_clear_goes_on(homes)


def test_a_run_that_was_refused_needs_no_cancel(homes: Homes) -> None:
    with pytest.raises(PipelineRunRefusedError):
        carry_out(operator("refused"), context())
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    assert not cancel()["cancelled"]


def test_a_retry_that_was_already_due_does_not_undo_a_cancel(homes: Homes) -> None:
    a_try_whose_time_is_up("live_waits")
    until(driver_has_started)
    cancel()
    assert_only_a_clear_goes_on(homes)


def test_a_retry_that_was_already_due_does_not_undo_the_cancel_of_a_restart(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fake_driver.RESTART_DELAY_MS, "3600000")
    a_try_whose_time_is_up("live_failed")
    until(lambda: answered(1))
    cancel()
    assert_only_a_clear_goes_on(homes)


def test_a_retry_does_not_take_over_a_cancelled_driver_that_is_ending(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_stubborn")
    with pytest.raises(PipelineRunError, match="has not ended"):
        cancel(timeout_s=0.1)
    with pytest.raises(PipelineRunRefusedError):
        carry_out(operator("live_waits", timeout_s=5.0), context(token="retry", try_number=2))
    assert AttemptLease(channel().files, AttemptNumber(1)).cancelled() is not None


def test_a_restart_that_was_decided_on_before_the_cancel_is_cancelled_too(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_stubborn")
    with pytest.raises(TaskDeferred):
        CancelPipelineOperator(task_id="cancel", home="flights").execute(context("now"))
    channel().respond_failure(
        channel().request(start_request_id(AttemptNumber(1))), RunCancelledError("Attempt 1 was cancelled.")
    )
    channel().request_start(RUN, parameters={}, restarts=RestartHistory(restarts=1))
    (homes.path() / ".go").touch()
    assert cancel()["attempt"] == 2
    assert answered(2) == "RunCancelledError"


def test_the_next_try_cancels_a_driver_whose_lease_another_owner_has_taken_since(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_stubborn")
    owners = AttemptLease(channel().files, AttemptNumber(1))
    taking = once(owners.cancelled, lambda: owners.take("the task was cleared"))
    with pytest.raises(PipelineRunError) as caught:
        cancel()
    taking.join()
    assert isinstance(caught.value.error, ConflictError)
    with pytest.raises(PipelineRunError, match="has not ended"):
        cancel("second try", timeout_s=0.1)
    assert owners.cancelled() is not None


def test_a_cancel_fails_if_the_driver_does_not_end(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_stubborn")
    with pytest.raises(PipelineRunError) as caught:
        cancel(timeout_s=0.1)
    assert isinstance(caught.value.error, DeadlineExceededError)
    assert not isinstance(caught.value, PipelineRunRefusedError)


def test_a_home_outside_the_roots_is_refused(homes: Homes) -> None:
    with pytest.raises(PipelineRunRefusedError):
        cancel(home="/elsewhere")


def test_the_result_of_a_cancel_can_be_stored_as_an_xcom(homes: Homes) -> None:
    a_driver_at_work(homes, entry="live_waits")
    facts = cancel()
    assert json.loads(json.dumps(facts)) == facts
