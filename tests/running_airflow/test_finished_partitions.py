"""A running Airflow runs a DAG once for each finished hour of a table."""

from pathlib import Path

import pytest

from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.support.running_airflow import RunningAirflow, until
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.watermarked_checkpoints import at, take

pytestmark = pytest.mark.airflow
FIRST = "2026-01-01T09:00:00"
CHAIN_S = 240.0
"""An event of the triggerer starts a task, whose event starts the DAG: three times as long as one of these steps may take."""


@pytest.fixture(scope="module")
def hours(airflow: RunningAirflow, roots: Path, tmp_path_factory: pytest.TempPathFactory) -> StagedPipeline:
    """A pipeline whose first hour, from nine to ten, is complete."""
    pipeline = StagedPipeline(open_files(str(roots / "hours")), tmp_path_factory.mktemp("tables"))
    pipeline.make_table(HOURLY)
    for dag_id in ("finishes_hours", "runs_once_an_hour"):
        airflow.unpause(dag_id)
    airflow.read_again("finishes_hours")  # Airflow registers the watched assets when it reads the file of an active DAG
    take(pipeline, at(10))
    publish(pipeline.files)
    return pipeline


def hours_of_runs(airflow: RunningAirflow) -> list[str]:
    return sorted(run["partition_key"] for run in airflow.get("dags/runs_once_an_hour/dagRuns")["dag_runs"])


@pytest.mark.usefixtures("hours")
def test_a_dag_runs_when_an_hour_has_finished(airflow: RunningAirflow) -> None:
    assert until(lambda: hours_of_runs(airflow), "the DAG runs", CHAIN_S)[0] == FIRST


@pytest.mark.nightly
def test_a_dag_runs_once_for_each_hour_although_triggerer_and_workers_were_killed(
    airflow: RunningAirflow, hours: StagedPipeline
) -> None:
    until(lambda: hours_of_runs(airflow), "the DAG runs", CHAIN_S)
    take(hours, at(12, 59))
    airflow.kill_triggerer()
    publish(hours.files)
    airflow.start_triggerer()
    airflow.kill_workers()
    airflow.start_what_is_missing()
    expected = [f"2026-01-01T{hour:02}:00:00" for hour in (9, 10, 11)]
    until(lambda: len(hours_of_runs(airflow)) >= len(expected), "the DAG has run for each hour", CHAIN_S)
    take(hours, at(13))
    publish(hours.files)
    until(lambda: hours_of_runs(airflow)[-1] == "2026-01-01T12:00:00", "the next hour has a run", CHAIN_S)
    assert hours_of_runs(airflow) == [*expected, "2026-01-01T12:00:00"]
