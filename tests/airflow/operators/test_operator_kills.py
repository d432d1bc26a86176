"""The effects of a kill on a task that waits in its worker, and on its driver."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.orders import StartOrder
from airflow_provider.tasks.driver_lease import DriverLease
from airflow_provider.version_compat import AirflowTaskTimeout
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import DeadlineExceededError, InterruptedRunError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.storage.local import LocalFiles
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.flights import (
    GIVEN,
    TaskLog,
    context,
    driver_has_started,
    failure,
    once,
    operator,
    task_log,
    until,
)

__all__ = ["task_log"]

AIRFLOW_KILLS_AFTER_S = 5.0


@pytest.fixture(autouse=True)
def waits_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GIVEN, "deferrable", False)


def killed_in_time(homes: Homes, task: StreamPipelineOperator, before: Callable[[], None] = lambda: None) -> str:
    """Kills a task once its driver has started, and returns its error. Both must end before Airflow would kill the task's process."""
    killed_s = list[float]()

    def kill() -> None:
        before()
        killed_s.append(time.monotonic())
        task.on_kill()

    killer = once(driver_has_started, kill)
    error = failure(task, InterruptedRunError)
    assert time.monotonic() - killed_s[0] < AIRFLOW_KILLS_AFTER_S
    killer.join()
    assert not psutil.pid_exists(homes.starts()[0]["pid"])
    return str(error)


@pytest.mark.parametrize("entry", ["waits", "stubborn"])
def test_a_killed_task_stops_its_driver_and_raises(homes: Homes, entry: str) -> None:
    assert "The task was killed." in killed_in_time(homes, operator(entry))
    assert not StreamPipelineHook().is_at_work("flights")


@pytest.mark.parametrize("storage", ["away", "silent"])
def test_a_kill_stops_the_driver_although_the_home_cannot_name_its_owner(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    back = threading.Event()

    def newest(*_: object) -> None:
        if storage == "away":
            raise StorageError("The disk is away.")
        back.wait(30.0)

    killed_in_time(homes, operator("waits"), lambda: monkeypatch.setattr(AttemptLease, "newest", newest))
    back.set()


def test_a_kill_ends_the_driver_in_time_although_the_cancel_cannot_be_written_to_the_home(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    back = threading.Event()
    monkeypatch.setattr(AttemptLease, "cancel", lambda *_: back.wait(30.0))
    killed_in_time(homes, operator("waits"))
    back.set()
    assert "The cancel of attempt 1 could not be written into its home: The home's storage does not answer." in task_log.text


def test_a_kill_ends_a_driver_that_ignores_its_cancel_although_the_storage_does_not_respond(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, back = operator("stubborn"), threading.Event()

    def silence() -> None:
        for name in ("read", "names", "create"):
            monkeypatch.setattr(LocalFiles, name, lambda *_: back.wait(30.0))
        time.sleep(3 * task.poll_interval_s)  # a look has begun

    killed_in_time(homes, task, silence)
    monkeypatch.undo()
    back.set()


def test_a_kill_before_the_task_begins_starts_no_driver(homes: Homes) -> None:
    task = operator("waits")
    task.on_kill()
    assert "If it has a driver, that driver goes on." in str(failure(task, InterruptedRunError))
    assert homes.starts() == []


def test_a_kill_before_the_driver_is_known_stops_it_too(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator("waits")
    submit = StreamPipelineHook.submit

    def killed_meanwhile(self: StreamPipelineHook, home: str, order: StartOrder) -> Any:
        submitted = submit(self, home, order)
        task.on_kill()
        return submitted

    monkeypatch.setattr(StreamPipelineHook, "submit", killed_meanwhile)
    assert "Its driver was cancelled." in str(failure(task, InterruptedRunError))
    assert not StreamPipelineHook().is_at_work("flights")


def test_a_task_that_does_not_cancel_leaves_its_driver_running(homes: Homes) -> None:
    task = operator("waits", cancel_on_kill=False)
    killer = once(driver_has_started, task.on_kill)
    assert "that driver goes on" in str(failure(task, InterruptedRunError))
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


def test_airflows_execution_timeout_ends_the_driver(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow first interrupts the try, and calls ``on_kill`` afterwards."""

    def broken_off(self: StreamPipelineOperator) -> None:
        until(lambda: StreamPipelineHook().is_at_work("flights"))
        raise AirflowTaskTimeout

    monkeypatch.setattr(StreamPipelineOperator, "_pause", broken_off)
    task = operator("waits")
    with pytest.raises(AirflowTaskTimeout):
        carry_out(task, context())
    task.on_kill()
    assert not StreamPipelineHook().is_at_work("flights")


def test_sigterm_ends_a_wait_with_the_exception_of_airflow(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    task, cancel, kept = operator("waits", poll_interval_s=60.0), AttemptLease.cancel, list[str]()

    def counted(owners: AttemptLease, owner: OwnerNumber, reason: str) -> None:
        kept.append(reason)
        cancel(owners, owner, reason)

    monkeypatch.setattr(AttemptLease, "cancel", counted)
    before = signal.signal(signal.SIGTERM, lambda number, frame: task.on_kill())
    try:
        main = threading.get_ident()
        killer = once(driver_has_started, lambda: signal.pthread_kill(main, signal.SIGTERM))
        failure(task, InterruptedRunError)
        killer.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not StreamPipelineHook().is_at_work("flights")
    assert kept == ["its task was killed"]


def test_a_signal_after_the_end_of_a_task_does_not_end_the_driver_that_it_left_running(homes: Homes) -> None:
    """Airflow sends this signal to a process with slow callbacks, and a worker sends it when it stops."""
    task = operator("waits", wait_for="submitted")
    carry_out(task, context())
    task.on_kill()
    assert AttemptLease(StreamPipelineHook().files("flights"), AttemptNumber(1)).cancelled() is None
    until(lambda: StreamPipelineHook().is_at_work("flights"))


def test_a_signal_after_a_task_timed_out_does_not_end_its_driver(homes: Homes) -> None:
    task = operator("waits", timeout_s=0.5)
    failure(task, DeadlineExceededError)
    task.on_kill()
    assert AttemptLease(StreamPipelineHook().files("flights"), AttemptNumber(1)).cancelled() is None


@pytest.mark.parametrize("ending", ["leaves", "defers"])
def test_a_kill_just_before_the_task_returns_fails_the_task_and_ends_its_driver(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A kill may come after the last look. If the task were deferred, it would find its own cancellation and fail for good."""
    task = operator("waits", wait_for="submitted") if ending == "leaves" else operator("waits", deferrable=True)
    release = DriverLease.release_driver

    def killed_meanwhile(lease: DriverLease) -> None:
        release(lease)
        task.on_kill()

    monkeypatch.setattr(DriverLease, "release_driver", killed_meanwhile)
    assert "Its driver was cancelled." in str(failure(task, InterruptedRunError))
    until(lambda: not StreamPipelineHook().is_at_work("flights"))


def test_a_late_wait_cannot_cancel_a_driver_that_its_task_has_left_running(homes: Homes) -> None:
    """One example is a delayed trigger, when another triggerer has already ended the wait."""
    carry_out(operator("waits", wait_for="submitted"), context())
    owners = AttemptLease(StreamPipelineHook().files("flights"), AttemptNumber(1))
    owners.cancel(OwnerNumber(1), "its task was cleared, or marked, while it was deferred")
    assert owners.cancelled() is None
