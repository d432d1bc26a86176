"""A task that stops, drains or saves a pipeline loses its worker or its triggerer at any point. In the end there is one savepoint."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.begun_streams import BEGUN_S
from tests.support.live_pipeline import Events, public_ids, public_minutes
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

WANTED = pytest.mark.parametrize("wanted", ["stop", "drain", "savepoint"])


class Stream:
    """A running pipeline that a task supervises, and a task that makes a request to it."""

    def __init__(self, airflow: RunningAirflow, home: Home, directory: Path, wanted: str) -> None:
        self.home, self._airflow, self._directory, self._wanted = home, airflow, directory, wanted
        self._events, self._warehouse = Events(directory / "events"), directory / "warehouse"
        self._events.add(100)
        places = {"events": str(self._events.path), "warehouse": str(self._warehouse)}
        self._supervising = airflow.trigger("real_stream", home=home.name, **places)
        until(self._all_is_public, "the pipeline is at work", BEGUN_S)

    @property
    def driver(self) -> psutil.Process:
        live = self.home.channel.attempts.latest()
        assert live is not None
        return psutil.Process(live.process)

    def ask(self, gate: str) -> TaskRun:
        """Triggers the task, which waits at the gate. With the name of no gate, it does not wait."""
        return self._airflow.trigger(f"{self._wanted}_at_gates", home=self.home.name, gate=gate, gates=str(self._directory))

    def at_gate(self, gate: str) -> TaskRun:
        task = self.ask(gate)
        until((self._directory / "waits").exists, "the task is at the gate", BEGUN_S)
        assert (self._asked() == []) is (gate == "asks")
        return task

    def open_gate(self) -> None:
        (self._directory / "open").touch()

    def has_come_to_one_savepoint(self, task: TaskRun) -> None:
        """Checks that the request was carried out once and that the task returned its result."""
        facts, ends = task.xcom(), self._wanted != "savepoint"
        assert len(self._asked()) == 1
        assert CheckpointRequests(self.home.channel.files).open() == ()
        (savepoint,) = (self.home.path / "savepoints").iterdir()
        assert facts["savepoint"] == savepoint.as_uri()
        verified = verify(open_files(savepoint.as_uri()))
        assert (verified.checkpoint, verified.drained) == (facts["checkpoint"], self._wanted == "drain")
        if ends:
            assert self._supervising.reaches("success")["try_number"] == 1
            assert self._supervising.xcom()["checkpoint"] == facts["checkpoint"]
        else:
            assert self._supervising.state == "deferred"
            self._supervising.mark("failed")
            self.home.ends()
        assert self._all_is_public()
        if self._wanted == "drain":
            assert public_minutes(self._warehouse / "minutes") == self._events.all_minutes()
        assert self.home.attempts() == 1

    def _asked(self) -> list[str]:
        kind = "savepoint" if self._wanted == "savepoint" else "stop"
        return self.home.asked(kind)

    def _all_is_public(self) -> bool:
        return public_ids(self._warehouse / "again") == list(range(self._events.rows))


@pytest.fixture
def stream(airflow: RunningAirflow, roots: Path, tmp_path: Path) -> Callable[[str, str], Stream]:
    return lambda name, wanted: Stream(airflow, Home(roots / f"{name}-{wanted}"), tmp_path, wanted)


@WANTED
@pytest.mark.parametrize("gate", ["asks", "defers", "answers"])
def test_a_task_whose_worker_dies_ends_with_exactly_one_savepoint(
    stream: Callable[[str, str], Stream], wanted: str, gate: str
) -> None:
    asked = stream(f"worker-{gate}", wanted)
    task = asked.at_gate(gate)
    task.kill_worker()
    asked.open_gate()
    assert task.reaches("success", "failed", tries=2, deadline_s=BEGUN_S)["state"] == "success"
    asked.has_come_to_one_savepoint(task)


@WANTED
@pytest.mark.parametrize("gate", ["defers", "answers"])
def test_a_task_without_a_triggerer_ends_with_exactly_one_savepoint(
    airflow: RunningAirflow, stream: Callable[[str, str], Stream], wanted: str, gate: str
) -> None:
    asked = stream(f"triggerer-{gate}", wanted)
    task = asked.at_gate(gate)
    airflow.kill_triggerer()
    asked.open_gate()
    try:
        task.reaches("deferred" if gate == "defers" else "success")
    finally:
        airflow.start_triggerer()
    assert task.reaches("success", "failed", deadline_s=BEGUN_S)["state"] == "success"
    assert task.tries == 1
    asked.has_come_to_one_savepoint(task)


@WANTED
def test_a_task_whose_triggerer_dies_while_it_waits_ends_with_exactly_one_savepoint(
    airflow: RunningAirflow, stream: Callable[[str, str], Stream], wanted: str
) -> None:
    asked = stream("triggerer-waits", wanted)
    driver = asked.driver
    driver.suspend()  # no answer can come yet
    try:
        task = asked.ask("none")
        task.reaches("deferred")
        until(lambda: " starting" in task.log(), "the triggerer waits")
        airflow.kill_triggerer()
    finally:
        driver.resume()
    airflow.start_triggerer()
    assert task.reaches("success", "failed", deadline_s=BEGUN_S)["state"] == "success"
    assert task.tries == 1
    asked.has_come_to_one_savepoint(task)
