"""The trigger that waits for a run's answer, with a fake driver."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.version_compat import TaskStates
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, start_request_id
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes
from tests.airflow.deferral import first_event, restarted
from tests.airflow.flights import TaskLog, driver_has_started, until
from tests.support.run_triggers import SOON_S, event_of, hook, started, trigger

__all__ = ["hook"]

pytestmark = pytest.mark.every_version


def answered(homes: Homes) -> dict[str, Any]:
    return {"home": f"file://{homes.path()}", "attempt": 1}


def test_an_answer_is_an_event_without_an_error(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    until(driver_has_started)
    assert event_of(trigger(homes), (homes.path() / ".go").touch) == answered(homes)


def test_a_driver_that_failed_is_an_event_with_its_error(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook, "failed")
    error = event_of(trigger(homes))["error"]
    assert (error["error"], error["remedy"], error["evidence"]) == ("InterruptedRunError", "Free space.", {"stage": "hourly"})


def test_a_deadline_names_the_running_driver_and_does_not_end_it(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    until(driver_has_started)
    error = event_of(trigger(homes, deadline_at=time.time() - 1.0, timeout_s=60.0))["error"]
    assert error["error"] == "DeadlineExceededError"
    assert "no answer after 60 s" in error["failed"]
    assert "stage hourly: running, batch 3" in error["exists"]
    assert hook.is_at_work("flights")


def test_a_restarted_trigger_waits_for_the_same_answer(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    until(driver_has_started)
    again = restarted(trigger(homes))
    assert isinstance(again, RunTrigger)
    assert again.serialize() == trigger(homes).serialize()
    assert event_of(again, (homes.path() / ".go").touch) == answered(homes)


def test_no_event_is_sent_before_the_task_is_deferred(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook, "answers")
    until(lambda: Channel(hook.files("flights")).response(start_request_id(AttemptNumber(1))))
    began_s = time.monotonic()
    assert event_of(trigger(homes, settle_s=1.0)) == answered(homes)
    assert time.monotonic() - began_s >= 1.0


def test_a_killed_task_asks_the_driver_to_end(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    asyncio.run(trigger(homes).on_kill())
    request = AttemptLease(hook.files("flights"), AttemptNumber(1)).cancelled()
    assert request is not None
    assert "cleared, or marked" in request.reason


def test_a_task_that_does_not_cancel_makes_no_request(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    asyncio.run(trigger(homes, cancel_on_kill=False).on_kill())
    assert AttemptLease(hook.files("flights"), AttemptNumber(1)).cancelled() is None


def test_a_kill_after_the_next_try_took_the_lease_ends_no_driver(homes: Homes, hook: StreamPipelineHook) -> None:
    started(hook)
    assert AttemptLease(hook.files("flights"), AttemptNumber(1)).take("the next try").owner == OwnerNumber(2)
    asyncio.run(trigger(homes).on_kill())
    assert AttemptLease(hook.files("flights"), AttemptNumber(1)).cancelled() is None


@pytest.mark.parametrize(
    ("said", "asks_to_end"),
    [
        ([{"r": {"run": "deferred"}}], False),
        ([{"r": {"run": "success"}}], True),
        ([{}], True),  # the task no longer exists
        ([ConnectionError(), {"r": {"run": "deferred"}}], False),
        ([AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), {"r": {"run": None}}], True),
        ([ConnectionError()] * 1_000, False),  # the state stays unknown
    ],
    ids=["waits", "marked", "gone", "waits, said late", "cleared, said late", "unknown"],
)
def test_only_a_task_that_certainly_no_longer_waits_asks_the_driver_to_end(
    homes: Homes, hook: StreamPipelineHook, monkeypatch: pytest.MonkeyPatch, said: list[Any], *, asks_to_end: bool
) -> None:
    answers = iter(said)

    def states(*_: object, **__: object) -> Any:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    started(hook)
    killed = trigger(homes)
    killed.task_states = TaskStates(states, ask_max_s=0.5, ask_again_s=0.01)
    names = {"dag_id": "flights", "run_id": "r", "task_id": "run", "map_index": -1}
    monkeypatch.setattr(type(killed), "task_instance", SimpleNamespace(**names), raising=False)
    vars(killed).pop("task_instance", None)  # below Airflow 3.3 this is no property
    asyncio.run(killed.on_kill())
    asked = [name for name in hook.files("flights").names("requests") if name.startswith("cancel-")]
    assert bool(asked) is asks_to_end


def test_progress_is_in_the_log(homes: Homes, hook: StreamPipelineHook, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TaskLog()
    monkeypatch.setattr(RunTrigger, "log", log)
    started(hook)
    line = "stage hourly: running, batch 3, 1,000 rows, 50 rows/s"

    def see_it() -> None:
        until(lambda: line in log.text)
        (homes.path() / ".go").touch()

    assert event_of(trigger(homes), see_it) == answered(homes)


@pytest.mark.parametrize("what", ["its file system", "its locks"])
def test_a_wait_tolerates_a_home_that_is_unavailable_for_a_while(
    homes: Homes, hook: StreamPipelineHook, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    waiting = trigger(homes)
    waiting.wait_limits = WaitLimits(silence_s=0.2)
    log = TaskLog()
    monkeypatch.setattr(RunTrigger, "log", log)
    started(hook)
    until(driver_has_started)
    place = homes.path() if what == "its file system" else homes.path() / "work"
    aside = homes.root.parent / "aside"

    def comes_back() -> None:
        until(lambda: "running" in log.text)
        place.rename(aside)
        if what == "its locks":
            place.write_text("no directory")
        until(lambda: log.text.count("The home cannot be read") >= 5)
        place.unlink(missing_ok=True)
        aside.rename(place)
        (homes.path() / ".go").touch()

    assert event_of(waiting, comes_back) == answered(homes)


def test_a_driver_gets_the_full_time_to_be_seen_once_the_home_is_available_again(
    homes: Homes, hook: StreamPipelineHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = trigger(homes)
    waiting.wait_limits = WaitLimits(silence_s=2.0)
    log = TaskLog()
    monkeypatch.setattr(RunTrigger, "log", log)
    started(hook, "slow")
    until(homes.starts)
    aside = homes.root.parent / "aside"
    homes.path().rename(aside)

    def comes_back() -> None:
        until(lambda: log.text.count("The home cannot be read") >= 25)
        aside.rename(homes.path())
        threading.Event().wait(0.5)  # a look comes when no driver has begun
        for what in (".begin", ".go"):
            (homes.path() / what).touch()

    assert event_of(waiting, comes_back) == answered(homes)


def test_a_home_that_stays_unavailable_ends_the_wait_without_another_try(homes: Homes, hook: StreamPipelineHook) -> None:
    """A further try would take the empty directory for a new home."""
    waiting = trigger(homes)
    waiting.wait_limits = WaitLimits(storage_s=2.0)
    started(hook)
    until(driver_has_started)
    homes.path().rename(homes.root.parent / "aside")
    error = event_of(waiting)["error"]
    (homes.root.parent / "aside").rename(homes.path())
    assert (error["error"], error["retry"]) == ("NotFoundError", "never")
    assert f"on {socket.gethostname()}: its file system is not mounted there" in error["failed"]


def test_a_run_that_failed_because_of_its_storage_ends_the_wait_at_once(homes: Homes, hook: StreamPipelineHook) -> None:
    """The error is the driver's. The home itself can be read."""
    started(hook, "full")
    began_s = time.monotonic()
    error = event_of(trigger(homes))["error"]
    assert (error["error"], error["remedy"]) == ("StorageFullError", "Free space.")
    assert time.monotonic() - began_s < SOON_S / 2


@pytest.mark.parametrize(("state", "cancelled"), [("deferred", False), ("success", True), (None, True)])
def test_the_driver_of_a_killed_task_ends_although_airflow_only_cancels_the_trigger(
    homes: Homes, hook: StreamPipelineHook, monkeypatch: pytest.MonkeyPatch, state: str | None, cancelled: bool
) -> None:
    """Airflow below 3.3 cancels such a trigger again each second. It also cancels every trigger when the triggerer shuts down."""
    asked = threading.Event()

    def states(*_: object, **__: object) -> Any:
        asked.set()
        time.sleep(0.2)
        return {"r": {"run": state}}

    started(hook)
    until(driver_has_started)
    waiting = trigger(homes)
    waiting.trigger_id, waiting.hears_kills, waiting.task_states = 7, False, TaskStates(states)
    names = {"dag_id": "flights", "run_id": "r", "task_id": "run", "map_index": -1}
    monkeypatch.setattr(type(waiting), "task_instance", SimpleNamespace(**names), raising=False)
    vars(waiting).pop("task_instance", None)  # below Airflow 3.3 this is no property

    async def killed() -> None:
        event = asyncio.create_task(first_event(waiting))
        await asyncio.sleep(0.1)
        event.cancel()
        await asyncio.to_thread(asked.wait)
        event.cancel()
        with pytest.raises(asyncio.CancelledError):
            await event

    asyncio.run(killed())
    assert (AttemptLease(hook.files("flights"), AttemptNumber(1)).cancelled() is not None) is cancelled


@pytest.mark.parametrize(("trigger_id", "cancelled"), [(None, True), (7, False)])
def test_only_a_test_run_that_is_interrupted_ends_the_driver(
    homes: Homes, hook: StreamPipelineHook, trigger_id: int | None, cancelled: bool
) -> None:
    """In a triggerer, every shutdown interrupts the trigger too."""
    started(hook)
    until(driver_has_started)
    waiting = trigger(homes)
    waiting.trigger_id, waiting.hears_kills = trigger_id, True

    async def interrupted() -> None:
        event = asyncio.create_task(first_event(waiting))
        await asyncio.sleep(0.1)
        event.cancel()
        with pytest.raises(asyncio.CancelledError):
            await event

    asyncio.run(interrupted())
    assert (AttemptLease(hook.files("flights"), AttemptNumber(1)).cancelled() is not None) is cancelled
