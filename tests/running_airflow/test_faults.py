"""The effects of failures and of user actions on the driver and on the next try: the rows of docs/reference/drivers.md."""

import pytest

from tests.running_airflow.conftest import Home, at_work
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = pytest.mark.airflow


def test_a_deferred_task_ends_with_the_answer(deferred: TaskRun, home: Home) -> None:
    home.let_end()
    deferred.reaches("success")
    assert (deferred.xcom()["checkpoint"], deferred.xcom()["attempt"], deferred.tries) == (1, 1, 1)
    assert home.starts() == 1
    home.assert_one_result(deferred)
    assert "stage hourly: running, batch 3" in deferred.log()


def test_a_run_that_was_answered_needs_no_second_driver(airflow: RunningAirflow, home: Home) -> None:
    task = airflow.trigger("answers_deferred", home=home.name)
    task.reaches("success")
    until(lambda: task.run_state == "success", "the DAG run has ended, too")
    task.clear()
    task.reaches("success", tries=2)
    assert home.starts() == 1


def test_a_triggerer_that_dies_loses_nothing(airflow: RunningAirflow, deferred: TaskRun, home: Home) -> None:
    airflow.kill_triggerer()
    home.let_end()
    home.ends()
    assert deferred.state == "deferred"
    airflow.start_triggerer()
    deferred.reaches("success")
    assert (home.starts(), deferred.tries) == (1, 1)


@pytest.mark.nightly
def test_a_triggerer_that_resumes_after_another_took_over_ends_no_driver(
    airflow: RunningAirflow, deferred: TaskRun, home: Home
) -> None:
    """The first triggerer mistakes its lost triggers for those of killed tasks."""
    first, lost = airflow.component("triggerer"), deferred.facts()["triggerer_job"]["id"]
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        process.suspend()
    second = airflow.start_second_triggerer()
    until(lambda: deferred.facts()["triggerer_job"]["id"] != lost, "the second one waits")
    for process in processes:
        process.resume()
    until(lambda: "in another triggerer" in deferred.log(), "the first one has noticed")
    for process in [*second.children(recursive=True), second]:
        process.kill()
    home.let_end()
    deferred.reaches("success")
    assert (home.starts(), deferred.tries) == (1, 1)


def test_a_task_that_is_cleared_ends_in_one_answer(deferred: TaskRun, home: Home) -> None:
    deferred.clear()
    deferred.reaches("deferred", tries=2)
    until(home.has_begun, "a driver is at work")
    home.let_end()
    deferred.reaches("success", tries=2)
    assert deferred.xcom()["attempt"] == home.attempts()
    home.assert_one_result(deferred)


@pytest.mark.nightly
def test_a_worker_that_dies_while_its_task_is_deferred_ends_no_driver(
    airflow: RunningAirflow, deferred: TaskRun, home: Home
) -> None:
    """The scheduler dies too, because both are one service here."""
    airflow.kill_workers()
    airflow.start_what_is_missing()
    home.let_end()
    deferred.reaches("success")
    assert (home.starts(), deferred.tries) == (1, 1)


@pytest.mark.parametrize("state", ["failed", pytest.param("success", marks=pytest.mark.nightly)])
def test_a_task_that_is_marked_failed_or_successful_cancels_its_driver(deferred: TaskRun, home: Home, state: str) -> None:
    deferred.mark(state)
    home.ends()
    assert deferred.state == state


@pytest.mark.parametrize("state", ["failed", pytest.param("success", marks=pytest.mark.nightly)])
def test_a_dag_run_that_is_marked_failed_or_successful_cancels_its_driver(deferred: TaskRun, home: Home, state: str) -> None:
    deferred.mark_run(state)
    home.ends()


@pytest.mark.nightly
def test_a_driver_that_fails_is_retried_and_a_refused_run_is_not(airflow: RunningAirflow, home: Home) -> None:
    refused = airflow.trigger("refused_deferred", home=f"{home.name}-refused")
    failed = airflow.trigger("failed_deferred", home=home.name)
    assert refused.reaches("failed")["try_number"] == 1
    assert failed.reaches("failed", deadline_s=180.0)["try_number"] == 3
    assert home.attempts() == 3
    assert "To do: Free space." in failed.log()
    assert "out of disk" in failed.log(1)


@pytest.mark.nightly
def test_a_task_that_does_not_cancel_leaves_its_driver_to_the_next_try(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_left_running", "deferred")
    until(lambda: " starting" in task.log(), "the triggerer waits")
    task.mark("failed")
    task.clear()
    task.reaches("deferred", tries=2)
    home.let_end()
    task.reaches("success", tries=2)
    assert (home.starts(), task.xcom()["attempt"]) == (1, 1)


@pytest.mark.nightly
def test_a_wait_that_times_out_leaves_its_driver_to_the_next_try(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_short_of_time", "deferred", "failed")
    task.reaches("failed")
    assert "has no answer after 10 s" in task.log()
    assert home.is_at_work()
    task.clear()
    task.reaches("deferred", tries=2)
    home.let_end()
    task.reaches("success", tries=2)
    assert (home.starts(), task.xcom()["attempt"]) == (1, 1)


@pytest.mark.parametrize(
    "kind", ["", pytest.param("_in_the_worker", marks=pytest.mark.nightly)], ids=["deferred", "in_the_worker"]
)
def test_a_task_that_exceeds_airflows_timeout_ends_its_driver_and_the_next_try_starts_another(
    airflow: RunningAirflow, home: Home, kind: str
) -> None:
    task = at_work(airflow, home, f"waits_short_of_airflows_time{kind}", "running" if kind else "deferred")
    until(lambda: home.attempts() == 2 and home.has_begun(), "the next attempt is at work")
    home.let_end()
    task.reaches("success", tries=2)
    assert (task.xcom()["attempt"], home.starts()) == (2, 2)
    home.assert_one_result(task)


def test_a_worker_that_dies_while_it_waits_leaves_the_driver_to_the_next_try(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    task.kill_worker()
    task.reaches("running", tries=2, deadline_s=120.0)
    home.let_end()
    task.reaches("success", tries=2)
    assert (home.starts(), task.xcom()["attempt"]) == (1, 1)


def test_a_task_that_is_marked_while_its_worker_waits_ends_its_driver(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    task.mark("failed")
    home.ends()
    assert task.state == "failed"


@pytest.mark.nightly
def test_a_task_that_is_cleared_while_its_worker_waits_starts_the_next_attempt(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    task.clear()
    until(lambda: home.attempts() == 2 and home.has_begun(), "the next attempt is at work")
    home.let_end()
    task.reaches("success", tries=2)
    assert (home.starts(), task.xcom()["attempt"]) == (2, 2)
    home.assert_one_result(task)


@pytest.mark.nightly
def test_a_dag_run_that_is_marked_while_a_worker_waits_ends_its_driver(airflow: RunningAirflow, home: Home) -> None:
    at_work(airflow, home, "waits_in_the_worker", "running").mark_run("failed")
    home.ends()


@pytest.mark.nightly
def test_marking_a_task_while_no_triggerer_runs_ends_no_driver_and_the_next_try_adopts_the_driver(
    airflow: RunningAirflow, deferred: TaskRun, home: Home
) -> None:
    airflow.kill_triggerer()
    deferred.mark("failed")
    airflow.start_triggerer()
    deferred.clear()
    deferred.reaches("deferred", tries=2)
    home.let_end()
    deferred.reaches("success", tries=2)
    assert (home.starts(), deferred.xcom()["attempt"]) == (1, 1)


@pytest.mark.nightly
def test_a_task_that_is_cleared_while_no_triggerer_runs_adopts_its_driver(
    airflow: RunningAirflow, deferred: TaskRun, home: Home
) -> None:
    airflow.kill_triggerer()
    deferred.clear()
    deferred.reaches("deferred", tries=2)
    airflow.start_triggerer()
    home.let_end()
    deferred.reaches("success", tries=2)
    assert (home.starts(), deferred.xcom()["attempt"]) == (1, 1)
    home.assert_one_result(deferred)
