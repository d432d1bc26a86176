"""What a kill does to a task that waits in its worker, and to its driver."""

import signal
import threading
import time
from typing import Any

import psutil
import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.orders import StartOrder
from spark_jobs.protocol.errors import InterruptedRunError, StorageError
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.test_operator import GIVEN, TaskLog, context, driver_has_started, failure, once, operator, task_log, until

__all__ = ["task_log"]

AIRFLOW_KILLS_AFTER_S = 5.0


@pytest.fixture(autouse=True)
def waits_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GIVEN, "deferrable", False)


@pytest.mark.parametrize("entry", ["waits", "stubborn"])
def test_a_killed_task_stops_its_driver_and_raises(homes: Homes, entry: str) -> None:
    task, killed_s = operator(entry), list[float]()

    def kill() -> None:
        killed_s.append(time.monotonic())
        task.on_kill()

    killer = once(driver_has_started, kill)
    error = failure(task, InterruptedRunError)
    assert time.monotonic() - killed_s[0] < AIRFLOW_KILLS_AFTER_S
    killer.join()
    assert "The task was killed." in str(error)
    assert not StreamPipelineHook().is_at_work("flights")
    assert not psutil.pid_exists(homes.starts()[0]["pid"])


@pytest.mark.parametrize("storage", ["away", "silent"])
def test_a_kill_stops_the_driver_although_the_home_cannot_say_whose_it_is(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    task, back, killed_s = operator("waits"), threading.Event(), list[float]()

    def has_charge(*_: object) -> bool:
        if storage == "away":
            raise StorageError("The disk is away.")
        return back.wait(30.0)

    def kill() -> None:
        monkeypatch.setattr(StreamPipelineHook, "has_charge", has_charge)
        killed_s.append(time.monotonic())
        task.on_kill()

    killer = once(driver_has_started, kill)
    failure(task, InterruptedRunError)
    assert time.monotonic() - killed_s[0] < AIRFLOW_KILLS_AFTER_S
    killer.join()
    back.set()
    assert not psutil.pid_exists(homes.starts()[0]["pid"])


def test_a_kill_whose_cancel_the_home_does_not_take_ends_the_driver_in_time(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    task, back = operator("waits"), threading.Event()
    monkeypatch.setattr(StreamPipelineHook, "cancel", lambda *_: back.wait(30.0))

    killer = once(driver_has_started, task.on_kill)
    failure(task, InterruptedRunError)
    killer.join()
    back.set()
    assert "attempt 1 is cancelled could not be written into its home: The home's storage does not answer." in task_log.text
    assert not psutil.pid_exists(homes.starts()[0]["pid"])


def test_a_kill_before_the_driver_is_known_stops_it_too(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator("waits")
    submit = StreamPipelineHook.submit

    def killed_meanwhile(self: StreamPipelineHook, home: str, order: StartOrder) -> Any:
        submitted = submit(self, home, order)
        task.on_kill()
        return submitted

    monkeypatch.setattr(StreamPipelineHook, "submit", killed_meanwhile)
    assert "Its driver was stopped." in str(failure(task, InterruptedRunError))
    assert not StreamPipelineHook().is_at_work("flights")


def test_a_task_that_does_not_cancel_leaves_its_driver_running(homes: Homes) -> None:
    task = operator("waits", cancel_on_kill=False)
    killer = once(driver_has_started, task.on_kill)
    assert "left running" in str(failure(task, InterruptedRunError))
    killer.join()
    assert StreamPipelineHook().is_at_work("flights")


def test_ctrl_c_stops_the_driver(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: StreamPipelineOperator) -> None:
        until(lambda: StreamPipelineHook().is_at_work("flights"))
        raise KeyboardInterrupt

    monkeypatch.setattr(StreamPipelineOperator, "_pause", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carry_out(operator("waits"), context())
    assert not StreamPipelineHook().is_at_work("flights")


def test_sigterm_during_a_wait_ends_it_as_airflow_does_it(homes: Homes) -> None:
    task = operator("waits", poll_interval_s=60.0)
    before = signal.signal(signal.SIGTERM, lambda number, frame: task.on_kill())
    try:
        main = threading.get_ident()
        killer = once(driver_has_started, lambda: signal.pthread_kill(main, signal.SIGTERM))
        failure(task, InterruptedRunError)
        killer.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not StreamPipelineHook().is_at_work("flights")
