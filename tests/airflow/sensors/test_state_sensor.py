"""The sensor for the state of a pipeline."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.sensors.pipeline_state import PipelineStateSensor
from airflow_provider.triggers.home import HomeTrigger
from airflow_provider.version_compat import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout
from spark_jobs.background import AT_WORK
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import RunState, StartResponse
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, RunId, start_request_id
from tests.airflow.conftest import connection
from tests.airflow.deferral import carry_out, first_event
from tests.airflow.flights import context, log_of, once
from tests.support.command_line import UsedHome
from tests.support.shaky_locks import ShakyLocks
from tests.support.staged_pipeline import NOW


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsedHome:
    """A home in which an attempt has begun and no driver is running."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    home = UsedHome(tmp_path)
    home.begin()
    return home


@pytest.fixture
def running(used: UsedHome) -> Iterator[UsedHome]:
    with used.driver():
        yield used


def sense(*states: str, **arguments: Any) -> Any:
    """Returns the result of the sensor."""
    given: dict[str, Any] = {"home": "home", "poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout": 20.0}
    return carry_out(PipelineStateSensor(task_id="wait", states=states or ("running",), **(given | arguments)), context())


def in_vain(*states: str, **arguments: Any) -> bool:
    """Returns True if the pipeline is in none of these states."""
    try:
        sense(*states, timeout=0.0, **arguments)
    except AirflowSensorTimeout:
        return True
    return False


def end(home: UsedHome, error: InterruptedRunError | None = None) -> None:
    request = Channel(home.files).request(start_request_id(AttemptNumber(1)))
    if error is not None:
        Channel(home.files).respond_failure(request, error)
        return
    answer = StartResponse(
        request=RequestId("start-1"),
        attempt=AttemptNumber(1),
        run=RunId("monday"),
        checkpoint=CheckpointId(1),
        sinks={},
        answered_at=NOW,
    )
    Channel(home.files).respond(answer)


def test_a_running_pipeline_ends_the_wait_at_once(running: UsedHome) -> None:
    running.beat(RunState.RUNNING)
    running.complete()
    found = {"home": running.url, "state": "running", "run": "monday", "attempt": 1, "checkpoint": 1}
    assert PipelineStateSensor(task_id="wait", home="home").execute(context()) == found


def test_the_trigger_reads_the_home_outside_of_the_event_loop(running: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that hangs would otherwise block every task that waits in the triggerer."""
    threads: list[str] = []

    def facts(*_: Any) -> dict[str, Any]:
        threads.append(current_thread().name)
        return {}

    monkeypatch.setattr("airflow_provider.waits.pipeline_states.state_facts", facts)
    running.beat(RunState.RUNNING)
    limits: dict[str, Any] = {"deadline_at": None, "timeout_s": None, "poll_interval_s": 0.02, "max_poll_interval_s": None}
    asyncio.run(
        first_event(HomeTrigger(kind="state", arguments={"states": ["running"]}, home=running.url, settle_s=0.0, **limits))
    )
    assert threads == [AT_WORK]


def test_a_deferred_wait_ends_when_the_pipeline_is_in_that_state(running: UsedHome) -> None:
    running.beat(RunState.STARTING)
    begins = once(lambda: True, lambda: running.beat(RunState.RUNNING))
    assert sense("running", "stopping")["state"] == "running"
    begins.join()


@pytest.mark.parametrize("state", [state.value for state in RunState if state not in (RunState.DONE, RunState.FAILED)])
def test_a_sensor_can_wait_for_each_state_of_a_running_driver(running: UsedHome, state: str) -> None:
    running.beat(RunState(state))
    assert sense(state)["state"] == state


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_a_sensor_keeps_waiting_while_the_storage_is_unavailable(
    used: UsedHome, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    log = log_of(monkeypatch, HomeTrigger, PipelineStateSensor)
    used.beat(RunState.RUNNING)
    with ShakyLocks(used) as locks:
        locks.go_away()
        storage = once(lambda: "The home cannot be read" in log.text, locks.come_back)
        assert sense(deferrable=deferrable, poke_interval=0.02)["state"] == "running"
        storage.join()


def test_the_last_heartbeat_of_a_dead_driver_is_ignored(used: UsedHome) -> None:
    used.beat(RunState.RUNNING)
    assert in_vain("running")
    assert sense("failed")["state"] == "failed"


def test_a_driver_that_has_just_begun_is_starting_whatever_the_last_heartbeat_says(running: UsedHome) -> None:
    assert sense("starting")["state"] == "starting"


@pytest.mark.parametrize(("error", "state"), [(None, "done"), (InterruptedRunError("A stage failed."), "failed")])
def test_the_outcome_of_an_attempt_is_a_state_once_its_driver_has_ended(
    used: UsedHome, error: InterruptedRunError | None, state: str
) -> None:
    used.beat(RunState(state))
    end(used, error)
    with used.driver():
        assert in_vain(state)
    assert sense(state)["state"] == state


def test_a_driver_of_the_next_attempt_hides_the_outcome_of_the_last_attempt(used: UsedHome) -> None:
    end(used)
    with holding(used.directory / "home" / DRIVER_LOCK, "start-2"):
        assert in_vain("done")
        assert sense("starting")["attempt"] is None


def test_a_home_where_nothing_has_run_has_no_state(used: UsedHome) -> None:
    assert in_vain(*RunState, home="another")


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"timeout": 0.1}, AirflowSensorTimeout),
        ({"timeout": 0.1, "soft_fail": True}, AirflowSkipException),
        ({"timeout": 60.0, "execution_timeout": timedelta(seconds=0.1)}, AirflowTaskTimeout),
    ],
)
def test_a_deferred_sensor_that_times_out_ends_like_any_sensor(
    used: UsedHome, limits: dict[str, Any], outcome: type[BaseException]
) -> None:
    with pytest.raises(outcome):
        sense(**limits)


@pytest.mark.parametrize("states", [(), ("runs",), "running"])
def test_unknown_states_are_refused_when_the_dag_is_parsed(states: Any) -> None:
    with pytest.raises(ValueError, match="give some of starting, running"):
        PipelineStateSensor(task_id="wait", home="home", states=states)


def test_a_home_outside_the_roots_is_refused(used: UsedHome) -> None:
    with pytest.raises(PipelineRunRefusedError):
        sense(home="/elsewhere")
