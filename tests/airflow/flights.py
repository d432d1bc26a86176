"""A task that runs the pipeline of the home ``flights`` with a fake driver, and what its tests need."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from airflow.sdk import Context

from airflow_provider.exceptions import PipelineRunError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.orders import StartOrder
from airflow_provider.retry import RETRIES
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import RunId
from spark_jobs.waits.limits import LIMITS
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out

RUN = RunId("airflow/flights/manual__2026-01-01T00:00:00+00:00/run")
DEADLINE_S = 20.0


def context(
    run_id: str = "manual__2026-01-01T00:00:00+00:00",
    map_index: int = -1,
    token: str = "first try",
    try_number: int = 1,
    max_tries: int = RETRIES,
) -> Context:
    pushed: dict[str, Any] = {}
    names = {"dag_id": "flights", "run_id": run_id, "task_id": "run", "map_index": map_index}
    tries = {"try_number": try_number, "max_tries": max_tries}
    task = SimpleNamespace(**names, **tries, id=f"{run_id} {map_index} {token}", pushed=pushed, xcom_push=pushed.__setitem__)
    return cast(Context, {"ti": task})


@pytest.fixture(params=[True, False], ids=["deferred", "in the worker"], autouse=True)
def waits_deferred(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs every test with both ways of waiting."""
    monkeypatch.setitem(GIVEN, "deferrable", request.param)
    return bool(request.param)


in_the_worker = pytest.mark.parametrize("waits_deferred", [False], indirect=True)
GIVEN: dict[str, Any] = {}
"""The arguments of every operator of a test, and its ``wait_limits``."""


def operator(entry: str = "answers", **arguments: Any) -> StreamPipelineOperator:
    given: dict[str, Any] = {"home": "flights", "poll_interval_s": 0.05, "max_poll_interval_s": 0.2, "timeout_s": 60.0}
    given |= GIVEN | arguments
    wait_limits = given.pop("wait_limits", LIMITS)
    task = StreamPipelineOperator(task_id="run", entry=f"/pipelines/{entry}.py", **given)
    task.wait_limits = wait_limits
    return task


class TaskLog:
    """Records the log of a task."""

    def __init__(self) -> None:
        self.text = ""

    def info(self, message: str, *arguments: object) -> None:
        self.text += (message % arguments if arguments else message) + "\n"

    warning = error = info


def log_of(monkeypatch: pytest.MonkeyPatch, *parts: type) -> TaskLog:
    """Returns a log that operators, sensors or triggers of these classes write to."""
    log = TaskLog()
    for part in parts:
        monkeypatch.setattr(part, "log", log)
    return log


@pytest.fixture
def task_log(monkeypatch: pytest.MonkeyPatch) -> TaskLog:
    return log_of(monkeypatch, StreamPipelineOperator)


def a_driver_at_work(homes: Homes, run: RunId = RUN, entry: str = "waits") -> psutil.Process:
    """Starts a driver of an earlier try, whose task no longer exists."""
    hook = StreamPipelineHook()
    _, driver = hook.submit("flights", StartOrder(entry=f"/pipelines/{entry}.py", run=run))
    until(driver_has_started)
    return psutil.Process(driver.pid)


def until(condition: Callable[[], object]) -> None:
    """Waits for an effect of another process."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("It did not happen in time.")


def once(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Calls ``action`` in another thread as soon as the condition holds."""

    def act() -> None:
        until(condition)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def driver_has_started() -> bool:
    hook = StreamPipelineHook()
    return hook.is_at_work("flights") and hook.status("flights") is not None


def failure(task: StreamPipelineOperator, kind: type[StreamPipelineError]) -> PipelineRunError:
    with pytest.raises(PipelineRunError) as caught:
        carry_out(task, context())
    assert type(caught.value.error) is kind
    return caught.value
