"""A running Airflow is told which tables a task has made public."""

import pytest

from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, until

pytestmark = pytest.mark.airflow


def test_a_table_that_became_public_is_an_event_with_its_version(airflow: RunningAirflow, home: Home) -> None:
    task = airflow.trigger("answers_and_tells", home=home.name)
    task.reaches("success")
    (event,) = until(lambda: airflow.get(f"assets/events?source_dag_id={task.dag_id}")["asset_events"], "an event is there")
    assert event["uri"] == "file:///t/hourly"
    assert {name: event["extra"][name] for name in ("home", "sink", "checkpoint", "version")} == {
        "home": f"file://{home.path}",
        "sink": "hourly",
        "checkpoint": 1,
        "version": 3,
    }
