"""Sensors that wait in the triggerer of a running Airflow."""

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, until
from tests.support.staged_pipeline import a_manifest

pytestmark = pytest.mark.airflow


def test_a_checkpoint_ends_a_deferred_wait(airflow: RunningAirflow, home: Home) -> None:
    home.path.mkdir()
    task = airflow.trigger("senses", home=home.name)
    task.reaches("deferred")
    until(lambda: " starting" in task.log(), "the triggerer waits")
    CheckpointStore(home.channel.files).complete(a_manifest(1))
    task.reaches("success")
    assert task.xcom()["checkpoint"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("dag_id", "state"), [("senses_in_vain", "failed"), ("senses_softly", "skipped")])
def test_time_that_is_up_ends_a_deferred_wait_in_its_first_try(
    airflow: RunningAirflow, home: Home, dag_id: str, state: str
) -> None:
    task = airflow.trigger(dag_id, home=home.name)
    assert task.reaches(state)["try_number"] == 1
