"""A resumed task is read again from its DAG file, which may name another home by then. The task still gets the answer of its own run."""

import asyncio
import shutil
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger

from airflow_provider.exceptions import PipelineRunError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.version_compat import TaskDeferred
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.deferral import first_event, restarted
from tests.airflow.flights import context, operator, until
from tests.support.staged_pipeline import a_manifest

ANOTHER = RunId("another")


def deferred(task: BaseOperator) -> BaseTrigger:
    """Starts a task and returns its trigger as a triggerer has it."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context())
    return restarted(caught.value.trigger, settle_s=0.0)


def event_of(trigger: BaseTrigger) -> dict[str, Any]:
    event: dict[str, Any] = asyncio.run(first_event(trigger)).payload
    return event


def another_run(home: str, entry: str) -> None:
    """Starts another task's run, which owns its first attempt."""
    hook = StreamPipelineHook()
    request, _ = hook.submit(home, StartOrder(entry=f"/pipelines/{entry}.py", run=ANOTHER))
    AttemptLease(hook.files(home), request.attempt).take("another task")
    until(lambda: hook.status(home))


def test_a_task_whose_home_changes_while_it_is_deferred_returns_the_result_of_its_first_home(homes: Homes) -> None:
    waiting = deferred(operator("waits"))
    another_run("elsewhere", "answers")
    (homes.path() / ".go").touch()
    result = operator("waits", home="elsewhere").execute_complete(context(), event_of(waiting))
    assert (result["home"], result["checkpoint"]) == (f"file://{homes.path()}", 1)
    assert "manual__2026" in result["run"]


def test_a_task_whose_home_changes_while_it_is_deferred_touches_no_attempt_of_the_new_home(homes: Homes) -> None:
    waiting = restarted(deferred(operator("waits")), deadline_at=time.time())
    another_run("elsewhere", "waits")
    changed = operator("waits", home="elsewhere", timeout_s=None, execution_timeout=timedelta(seconds=1))
    with pytest.raises(PipelineRunError, match="has no answer"):
        changed.execute_complete(context(), event_of(waiting))
    elsewhere, here = (AttemptLease(open_files(str(homes.path(name))), AttemptNumber(1)) for name in ("elsewhere", "flights"))
    newest = elsewhere.newest()
    assert newest is not None
    assert (newest.token, elsewhere.cancelled()) == ("another task", None)
    assert here.cancelled() is not None


def test_a_sensor_whose_home_changes_while_it_is_deferred_reports_on_its_first_home(homes: Homes) -> None:
    sensor = CheckpointSensor(task_id="wait", home="flights", poll_interval_s=0.02, timeout=30.0)
    waiting = deferred(sensor)
    for home, run in (("flights", "ours"), ("elsewhere", "another")):
        CheckpointStore(open_files(str(homes.path(home)))).complete(a_manifest(1, run=RunId(run)))
    found = CheckpointSensor(task_id="wait", home="elsewhere").execute_complete(context(), event_of(waiting))
    assert (found["home"], found["run"]) == (f"file://{homes.path()}", "ours")


def test_a_home_that_was_created_again_has_no_answer_for_the_task(homes: Homes) -> None:
    waiting = deferred(operator("waits"))
    (homes.path() / ".go").touch()
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    shutil.rmtree(homes.path())
    another_run("flights", "answers")
    with pytest.raises(PipelineRunError, match="no answer") as caught:
        operator("waits").execute_complete(context(), event_of(waiting))
    assert type(caught.value.error) is InterruptedRunError


def test_a_killed_task_ends_no_attempt_of_a_home_that_was_created_again(homes: Homes) -> None:
    waiting = deferred(operator("waits"))
    (homes.path() / ".go").touch()
    until(lambda: not StreamPipelineHook().is_at_work("flights"))
    shutil.rmtree(homes.path())
    another_run("flights", "waits")
    asyncio.run(waiting.on_kill())
    assert AttemptLease(open_files(str(homes.path())), AttemptNumber(1)).cancelled() is None
