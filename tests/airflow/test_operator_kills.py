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
from spark_jobs.protocol.errors import InterruptedRunError
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.test_operator import GIVEN, context, driver_has_started, failure, once, operator, until

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
