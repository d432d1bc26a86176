"""A running Airflow gets the events of the tables that a task has published."""

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, until
from tests.support.staged_pipeline import HOURLY, StagedPipeline

pytestmark = pytest.mark.airflow


# test_an_asset_watcher_runs_a_dag_on_a_publication has the event by day.
@pytest.mark.nightly
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


def watched_events(airflow: RunningAirflow) -> list[dict[str, Any]]:
    """Returns the events of the watching trigger, by checkpoint."""
    found = airflow.get("assets/events")["asset_events"]
    payloads = [event["extra"]["payload"] for event in found if event["extra"].get("from_trigger")]
    return sorted(payloads, key=lambda payload: int(payload["checkpoint"]))


@pytest.fixture(scope="module")
def watched(airflow: RunningAirflow, roots: Path, tmp_path_factory: pytest.TempPathFactory) -> StagedPipeline:
    """A pipeline with one publication, for whose publications a DAG waits."""
    pipeline = StagedPipeline(open_files(str(roots / "watched")), tmp_path_factory.mktemp("tables"))
    pipeline.make_table(HOURLY)
    airflow.unpause("watching")
    airflow.read_again("watching")  # Airflow registers the watched assets when it reads the file of an active DAG
    make_public(pipeline)
    return pipeline


def make_public(pipeline: StagedPipeline) -> None:
    publish(pipeline.files, pipeline.checkpoint({HOURLY: [(1, "monday")]}).checkpoint)


def test_an_asset_watcher_runs_a_dag_on_a_publication(airflow: RunningAirflow, watched: StagedPipeline) -> None:
    first, *_ = until(lambda: watched_events(airflow), "the first event is there")
    tables = {HOURLY: {"table": watched.tables[HOURLY], "version": 1}}
    assert first == {"home": watched.files.url, "checkpoint": 1, "tables": tables, "behind": [], "exact": True}
    until(lambda: airflow.get("dags/watching/dagRuns")["total_entries"], "the DAG runs")


@pytest.mark.nightly
def test_a_new_triggerer_continues_after_the_last_event_of_an_asset_watcher(
    airflow: RunningAirflow, watched: StagedPipeline
) -> None:
    until(lambda: watched_events(airflow), "the first event is there")
    (asset,) = airflow.get("assets?name_pattern=watched_public")["assets"]
    until(lambda: airflow.get(f"assets/{asset['id']}/state-store")["total_entries"] == 1, "what was sent is noted")
    airflow.kill_triggerer()
    make_public(watched)
    make_public(watched)
    airflow.start_triggerer()
    found = until(lambda: len(events := watched_events(airflow)) >= 3 and events, "the other events are there")
    assert [event["checkpoint"] for event in found] == [1, 2, 3]
