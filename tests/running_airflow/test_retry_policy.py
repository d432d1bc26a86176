"""Airflow applies the policy's decision to an error in a worker, and to an error after a deferral."""

import pytest
from sqlalchemy import create_engine, text

from tests.running_airflow.conftest import Home, at_work
from tests.support.postgres import Postgres
from tests.support.running_airflow import RunningAirflow, TaskRun

pytestmark = pytest.mark.airflow

REASON = "ConflictError: retry at once"


def reasons(database: Postgres, task: TaskRun) -> list[str | None]:
    """Returns Airflow's recorded reason for the retry after each try of a task."""
    engine = create_engine(f"postgresql+psycopg2://{database.uri}")
    try:
        with engine.connect() as connection:
            found = connection.execute(
                text("SELECT retry_reason FROM task_instance_history WHERE dag_id = :dag AND run_id = :run ORDER BY try_number"),
                {"dag": task.dag_id, "run": task.run_id},
            )
            return list(found.scalars())
    finally:
        engine.dispose()


@pytest.mark.parametrize("dag_id", ["beaten_deferred", "beaten_in_the_worker"])
def test_a_task_that_lost_a_race_is_retried_at_once_and_log_and_history_say_why(
    airflow: RunningAirflow, database: Postgres, home: Home, dag_id: str
) -> None:
    """Without the policy the next try would come an hour later."""
    task = at_work(airflow, home, dag_id, "deferred" if dag_id == "beaten_deferred" else "running")
    home.let_end()
    assert task.reaches("failed", tries=2)["try_number"] == 2
    assert home.attempts() == 2
    assert REASON in task.log(1)
    assert reasons(database, task) == [REASON]
