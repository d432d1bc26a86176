"""Streams that a running Airflow has begun."""

from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, TaskRun, until

BEGUN_S = 180.0


def begun_stream(airflow: RunningAirflow, home: Home, dag_id: str = "live_stream") -> TaskRun:
    """Starts an example's pipeline and waits for its first checkpoint. Returns the supervising task."""
    task = airflow.trigger(dag_id)
    until(lambda: home.has_begun() and home.channel.files.names("manifests"), "it has a checkpoint", BEGUN_S)
    task.reaches("deferred")
    return task
