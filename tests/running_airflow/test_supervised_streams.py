"""An unbounded pipeline under a running Airflow loses its driver. No retry is used for this."""

from pathlib import Path

import pytest
from psutil import NoSuchProcess, Process

from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import RunState
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home, at_work
from tests.support.live_pipeline import Events, public_ids, public_minutes
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = pytest.mark.airflow

RESTARTED_S = 120.0


def is_at_attempt(home: Home, number: int) -> bool:
    """Returns True if the driver of this attempt is running its pipeline."""
    status = read_status(open_files(str(home.path)))
    return home.is_at_work() and status is not None and status.attempt == number and status.state is RunState.RUNNING


def begins_attempt(home: Home, task: TaskRun, number: int) -> None:
    until(lambda: is_at_attempt(home, number), f"attempt {number} is at work", RESTARTED_S)
    task.reaches("deferred", "running")


@pytest.mark.parametrize("dag_id", ["live_deferred", "live_in_the_worker"])
def test_a_driver_that_is_killed_twice_costs_no_retry(airflow: RunningAirflow, home: Home, dag_id: str) -> None:
    task = at_work(airflow, home, dag_id, "deferred", "running")
    for number in (2, 3):
        home.kill_driver()
        begins_attempt(home, task, number)
    home.let_end()
    task.reaches("success")
    assert (task.tries, home.starts(), task.xcom()["attempt"]) == (1, 3, 3)
    assert "restart 2 by the pipeline's strategy" in task.log()
    home.assert_one_result(task)


@pytest.mark.nightly
def test_an_exhausted_strategy_ends_the_task_in_its_first_try_and_calls_its_callback(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "live_deferred", "deferred")
    for number in (2, 3):
        home.kill_driver()
        begins_attempt(home, task, number)
    home.kill_driver()
    assert task.reaches("failed", deadline_s=RESTARTED_S)["try_number"] == 1
    assert "fixed-delay allows 2 restarts" in task.log()
    assert "somebody is told of PipelineRunRefusedError" in task.log()
    assert home.starts() == 3


@pytest.mark.nightly
def test_a_driver_is_restarted_although_the_triggerer_dies_with_it(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "live_deferred", "deferred")
    airflow.kill_triggerer()
    home.kill_driver()
    home.ends()
    airflow.start_triggerer()
    begins_attempt(home, task, 2)
    home.let_end()
    task.reaches("success")
    assert (task.tries, home.starts()) == (1, 2)


def test_a_task_that_is_marked_while_it_supervises_ends_its_pipeline(airflow: RunningAirflow, home: Home) -> None:
    task = at_work(airflow, home, "live_deferred", "deferred")
    until(lambda: " starting" in task.log(), "the triggerer waits")
    task.mark("failed")
    home.ends()
    assert (task.state, home.starts()) == ("failed", 1)


def test_a_pipeline_that_was_left_running_outlives_its_task_and_is_found_again(airflow: RunningAirflow, home: Home) -> None:
    task = airflow.trigger("left_at_work", home=home.name)
    task.reaches("success")
    until(lambda: task.run_state == "success", "the DAG run has ended, too")
    assert is_at_attempt(home, 1)
    task.clear()
    task.reaches("success", tries=2)
    assert (home.starts(), task.xcom()["attempt"]) == (1, 1)
    assert is_at_attempt(home, 1)


@pytest.mark.nightly
def test_a_pipeline_that_was_left_running_outlives_a_process_that_airflow_ends(airflow: RunningAirflow, home: Home) -> None:
    """The task has succeeded, and its callback takes longer than Airflow allows after a success."""
    task = airflow.trigger("left_by_a_slow_process", home=home.name)
    task.reaches("success")
    until((home.path / "asked_to_end").exists, "Airflow asks the process to end")
    until(lambda: is_at_attempt(home, 1), "the driver goes on")
    assert [name for name in home.channel.files.names("requests") if name.startswith("cancel")] == []


def kill_all(home: Home) -> None:
    """Kills the driver with its JVM and its Python workers, like a failure of their host."""
    live = home.channel.attempts.latest()
    assert live is not None
    driver = Process(live.process)
    for process in (driver, *driver.children(recursive=True)):
        try:
            process.kill()
        except NoSuchProcess:
            continue


@pytest.mark.spark
@pytest.mark.nightly
def test_every_row_of_a_stream_whose_driver_is_killed_twice_is_public_once(
    airflow: RunningAirflow, roots: Path, tmp_path: Path
) -> None:
    home, events, warehouse = Home(roots / "real_stream"), Events(tmp_path / "events"), tmp_path / "warehouse"
    events.add(100)
    conf = {"home": home.name, "events": str(events.path), "warehouse": str(warehouse)}
    task = airflow.trigger("real_stream", **conf)
    for number in (1, 2, 3):
        begins_attempt(home, task, number)
        events.add(150)
        until(lambda: public_ids(warehouse / "copied")[-1:] == [events.rows - 1], "new rows are public", RESTARTED_S)
        if number < 3:
            kill_all(home)
    expected = list(range(events.rows))
    until(lambda: public_ids(warehouse / "again") == expected, "the stage behind has followed", RESTARTED_S)
    until(lambda: public_minutes(warehouse / "minutes") == events.closed_minutes(), "so have the windows", RESTARTED_S)
    assert public_ids(warehouse / "copied") == expected
    assert task.tries == 1
    task.mark("failed")
    home.ends()
    assert home.attempts() == 3
