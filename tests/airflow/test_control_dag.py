"""The DAG that controls one pipeline. Each action of its form does its own task, and no other."""

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.control_dag import ACTIONS, CONTROL_TAG, chosen_task, control_dag
from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.version_compat import ParamValidationError
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes, connection
from tests.airflow.known_dags import run_dag
from tests.support.answering_driver import LIVE, Driver
from tests.support.command_line import UsedHome
from tests.support.staged_pipeline import HOURLY

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.usefixtures("settled"),
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsedHome:
    """The home of an unbounded pipeline whose driver has ended."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    home = UsedHome(tmp_path, LIVE)
    home.begin()
    return home


def controlled(home: str = "home", **arguments: Any) -> DAG:
    return control_dag("flights_control", home=home, **arguments)


def states(dag_run: Any) -> dict[str, str]:
    """Returns the final state of each task, without skipped tasks."""
    found = {each.task_id: str(each.state) for each in dag_run.get_task_instances()}
    return {name: state for name, state in found.items() if state != "skipped"}


def test_a_checkpoint_of_the_running_pipeline_is_taken_and_no_other_task_runs(used: UsedHome) -> None:
    with used.driver(), Driver(used):
        dag_run = run_dag(controlled(), action="checkpoint")
    assert states(dag_run) == {"choose": "success", "checkpoint": "success"}
    facts = dag_run.get_task_instance("checkpoint").xcom_pull(task_ids="checkpoint")
    assert (facts["checkpoint"], facts["savepoint"]) == (1, None)


def test_a_savepoint_goes_where_the_form_says(used: UsedHome) -> None:
    with used.driver(), Driver(used):
        dag_run = run_dag(controlled(), action="savepoint", target="mine")
    facts = dag_run.get_task_instance("savepoint").xcom_pull(task_ids="savepoint")
    assert facts["savepoint"] == f"file://{used.directory}/mine"


def test_the_savepoint_that_the_form_names_is_deleted_and_no_other(used: UsedHome) -> None:
    manifest = used.staged.checkpoint({HOURLY: [(1, "a")]})
    first, second = (used.directory / "saved" / name for name in ("first", "second"))
    for place in (first, second):
        export(used.files, manifest.checkpoint, open_files(str(place)), request=RequestId("savepoint-1"))
    dag_run = run_dag(controlled(), action="dispose", savepoint=str(first))
    assert states(dag_run) == {"choose": "success", "dispose": "success"}
    assert (first.exists(), second.exists()) == (False, True)


def test_a_restore_starts_the_pipeline_from_the_savepoint_of_the_form(homes: Homes) -> None:
    pipeline = {"entry": "/pipelines/answers.py", "parameters": {"day": "{{ params.day }}"}, "poll_interval_s": 0.05}
    dag = controlled("flights", pipeline=pipeline, params={"day": "2026-01-01"})
    saved = homes.root / "saved"
    dag_run = run_dag(dag, action="restore", savepoint=str(saved), on_rewind="keep", allow_drained=True, day="2026-01-02")
    assert states(dag_run) == {"choose": "success", "restore": "success"}
    request = Channel(open_files(str(homes.path()))).request(RequestId("start-1"))
    assert request.restore is not None
    assert (request.restore.savepoint, request.restore.allow_drained) == (f"file://{saved}", True)
    assert (request.on_rewind, request.parameters) == (OnRewind.KEEP, {"day": "2026-01-02"})


def test_every_action_is_a_task_and_a_drain_waits_for_a_person() -> None:
    dag = controlled(pipeline={"entry": "/pipelines/answers.py"})
    assert {name: chosen_task({"action": name, "savepoint": "/saved"}) for name in ACTIONS} == (
        {name: name for name in ACTIONS} | {"drain": "approve"}
    )
    assert set(dag.task_ids) == {"choose", "approve", *ACTIONS}
    assert dag.get_task("drain").upstream_task_ids == {"approve"}
    assert CONTROL_TAG in dag.tags


@pytest.mark.parametrize("action", ["restore", "dispose"])
@pytest.mark.parametrize("savepoint", [None, "", " "])
def test_an_action_that_needs_a_savepoint_is_refused_without_one(action: str, savepoint: str | None) -> None:
    with pytest.raises(PipelineRunRefusedError, match="needs a savepoint"):
        chosen_task({"action": action, "savepoint": savepoint})


@pytest.mark.parametrize(
    ("name", "value"), [("action", "explode"), ("action", "restore"), ("home", "other"), ("conn_id", "other"), ("target", 1)]
)
def test_a_run_cannot_name_another_home_another_connection_or_an_unknown_action(name: str, value: object) -> None:
    with pytest.raises(ParamValidationError):
        controlled().params.get_param(name).resolve(value)


def test_arguments_that_the_control_dag_sets_itself_are_refused_when_the_file_is_parsed() -> None:
    with pytest.raises(ValueError, match="sets home, restore itself"):
        controlled(pipeline={"entry": "/pipelines/answers.py", "home": "flights", "restore": "x"})
    with pytest.raises(ValueError, match="The form already has target"):
        controlled(params={"target": "x"})


def test_a_control_dag_accepts_settings_of_a_dag() -> None:
    dag = controlled(schedule=None, max_active_runs=3, default_args={"retries": 7}, tags=["mine"])
    assert (dag.max_active_runs, dag.get_task("stop").retries) == (3, 7)
    assert dag.tags == {CONTROL_TAG, "mine"}
