"""Drivers and their tasks while Airflow itself, its database or a home's storage is down."""

import time
from functools import partial
from threading import Lock

import pytest

from spark_jobs.control.home import cache_name
from tests.running_airflow.conftest import DAGS, Home, at_work, connection, nothing_left
from tests.support.fake_python import make_fake_python
from tests.support.object_store import object_store
from tests.support.postgres import Postgres
from tests.support.running_airflow import RunningAirflow, TaskRun, running, until

pytestmark = [pytest.mark.airflow, pytest.mark.nightly]

AWAY_S = 60.0
LATE_S = 240.0
"""The time that Airflow may need to notice earlier events."""


def pass_time(seconds: float) -> None:
    """Waits this long. An outage that is shorter than Airflow's timeouts proves little."""
    end_s = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end_s, "time passes", seconds + 10.0)


def finished(task: TaskRun, home: Home) -> None:
    task.reaches("success", deadline_s=LATE_S)
    home.assert_one_result(task)


def test_a_deferred_task_survives_a_minute_without_airflows_database(
    airflow: RunningAirflow, database: Postgres, deferred: TaskRun, home: Home
) -> None:
    database.stop()
    pass_time(AWAY_S / 2)
    home.let_end()
    home.ends()
    pass_time(AWAY_S / 2)
    database.start()
    airflow.start_what_is_missing()
    finished(deferred, home)
    assert home.starts() == 1


def test_a_task_in_a_worker_survives_a_minute_without_airflows_database(
    airflow: RunningAirflow, database: Postgres, home: Home
) -> None:
    """Airflow kills a process that sends no heartbeat, which ends the driver. The next try starts another one."""
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    database.stop()
    pass_time(AWAY_S)
    assert not home.is_at_work()
    database.start()
    airflow.start_what_is_missing()
    home.let_end()
    finished(task, home)
    assert (home.starts(), task.xcom()["attempt"]) == (2, 2)


def test_a_deferred_task_survives_a_restart_of_airflow(airflow: RunningAirflow, deferred: TaskRun, home: Home) -> None:
    airflow.stop_components()
    assert home.is_at_work()
    airflow.restart()
    home.let_end()
    finished(deferred, home)
    assert home.starts() == 1


def test_an_answer_that_arrives_while_airflow_is_down_is_found(airflow: RunningAirflow, deferred: TaskRun, home: Home) -> None:
    airflow.stop_components()
    home.let_end()
    home.ends()
    airflow.restart()
    finished(deferred, home)
    assert home.starts() == 1


def test_a_task_in_a_worker_survives_a_restart_of_airflow(airflow: RunningAirflow, home: Home) -> None:
    """The worker is asked to end, and so is the driver. Or the worker is killed, and the next try finds the driver running."""
    task = at_work(airflow, home, "waits_in_the_worker", "running")
    airflow.stop_components()
    left = home.is_at_work()
    airflow.restart()
    home.let_end()
    finished(task, home)
    assert home.starts() == task.xcom()["attempt"] == (1 if left else 2)


def test_tasks_tolerate_a_storage_that_does_not_respond_for_a_minute(tmp_path_factory: pytest.TempPathFactory) -> None:
    work, programs, directory = (tmp_path_factory.mktemp(name) for name in ("work", "bin", "silent"))
    silence = Lock()
    with object_store(silence) as url, nothing_left(work, programs, directory, store=f"{url}/homes"):
        places = {"home_root": f"{url}/homes", "work_root": str(work)}
        with running(directory, DAGS, connection(work, make_fake_python(programs), **places), {}) as airflow:
            kinds = {"deferred": "deferred", "in_the_worker": "running"}
            tasks = {kind: airflow.trigger(f"waits_{kind}", home=kind) for kind in kinds}
            for kind, task in tasks.items():
                task.reaches(kinds[kind], deadline_s=LATE_S)
                until(partial(waits, task), "the task waits", LATE_S)
            with silence:
                pass_time(AWAY_S)
            for kind, task in tasks.items():
                assert task.state == kinds[kind]
                Home(work / cache_name(f"{url}/homes/{kind}")).let_end()
                task.reaches("success", deadline_s=LATE_S)
                assert (Home(work / cache_name(f"{url}/homes/{kind}")).starts(), task.tries) == (1, 1)


def waits(task: TaskRun) -> bool:
    return "stage hourly: running" in task.log()
