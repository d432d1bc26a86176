"""Sensors that wait in the triggerer of a running Airflow."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind
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


def test_an_alert_fires_when_the_newest_checkpoint_is_too_old_and_only_then(airflow: RunningAirflow, home: Home) -> None:
    home.path.mkdir()
    store, now = CheckpointStore(home.channel.files), datetime.now(UTC)
    store.complete(a_manifest(1, checkpoint_kind=CheckpointKind.PERIODIC, completed_at=now - timedelta(minutes=11)))
    alert = airflow.trigger("alerts", home=home.name)
    alert.reaches("failed")
    until(lambda: "somebody is told of AirflowSensorTimeout" in alert.log(), "the callback is called")
    store.complete(a_manifest(2, checkpoint_kind=CheckpointKind.PERIODIC, completed_at=now))
    assert airflow.trigger("alerts", home=home.name).reaches("success")["try_number"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("dag_id", "state"), [("senses_in_vain", "failed"), ("senses_softly", "skipped")])
def test_a_deferred_sensor_that_times_out_ends_in_its_first_try(
    airflow: RunningAirflow, home: Home, dag_id: str, state: str
) -> None:
    task = airflow.trigger(dag_id, home=home.name)
    assert task.reaches(state)["try_number"] == 1
