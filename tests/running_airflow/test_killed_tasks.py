"""The driver of a task whose process or worker is killed by a person or by the host, in the worker and before the deferral.

A deferred task has neither process nor worker. See ``test_faults.py``.
"""

import psutil
import pytest

from tests.running_airflow.conftest import Home, at_work
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = pytest.mark.airflow

KILL, TERMINATE = psutil.Process.kill, psutil.Process.terminate


def assert_success(task: TaskRun, home: Home, *, attempt: int, starts: int) -> None:
    """Checks that the second try ends with the only result."""
    task.reaches("success", tries=2)
    assert (task.xcom()["attempt"], home.starts()) == (attempt, starts)
    home.assert_one_result(task)


def test_the_next_try_waits_for_the_driver_of_a_task_that_was_killed(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    task.process().kill()
    task.reaches("running", tries=2)
    home.let_end()
    assert_success(task, home, attempt=1, starts=1)


@pytest.mark.parametrize("whom", ["the task", pytest.param("its worker", marks=pytest.mark.nightly)])
def test_a_task_that_is_terminated_ends_its_driver_and_the_next_try_starts_another(
    airflow: RunningAirflow, home: Home, whom: str
) -> None:
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    (task.process() if whom == "the task" else task.worker()).terminate()
    task.reaches("running", tries=2)
    until(lambda: home.attempts() == 2 and home.has_begun(), "the next attempt is at work")
    assert [answer.attempt for answer in home.answers()] in ([], [1]), "the first attempt has ended, with a result or without"
    home.let_end()
    assert_success(task, home, attempt=2, starts=2)


@pytest.mark.parametrize("end", [KILL, pytest.param(TERMINATE, marks=pytest.mark.nightly)], ids=["killed", "asked_to_end"])
def test_a_task_that_ends_before_its_driver_was_seen_leaves_one_attempt(airflow: RunningAirflow, home: Home, end: object) -> None:
    """A killed task leaves a driver that begins later, next to the driver of the next try, and for the same request."""
    assert callable(end)
    task = airflow.trigger("slow_deferred", home=home.name)
    until(lambda: home.starts() == 1, "the driver has started")
    end(task.process())
    until(lambda: home.starts() == 2, "the next try has started a driver")
    home.let_begin()
    until(home.has_begun, "one of them is at work")
    home.let_end()
    assert_success(task, home, attempt=1, starts=2)
    assert home.attempts() == 1


@pytest.mark.nightly
def test_a_worker_that_is_killed_before_its_task_is_deferred_leaves_one_attempt(airflow: RunningAirflow, home: Home) -> None:
    task = airflow.trigger("slow_deferred", home=home.name)
    until(lambda: home.starts() == 1, "the driver has started")
    task.kill_worker()
    until(lambda: home.starts() == 2, "the next try has started a driver", 120.0)
    home.let_begin()
    until(home.has_begun, "one of them is at work")
    home.let_end()
    assert_success(task, home, attempt=1, starts=2)
    assert home.attempts() == 1
