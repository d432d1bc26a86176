"""The parts of a task that a run's configuration can change, and those that it cannot."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from pydantic import BaseModel

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema
from spark_jobs.api.parameters import schema
from tests.airflow.conftest import Homes
from tests.airflow.flights import TaskLog, task_log
from tests.airflow.known_dags import run_dag

__all__ = ["task_log"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.usefixtures("settled"),
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


class Parameters(BaseModel):
    flights: str


AUTHORS = {"spark.jars": "/opt/udfs.jar", "spark.executor.memory": "{{ params.memory }}"}


def run(chosen: dict[str, Any], more: dict[str, Param] | None = None, **arguments: Any) -> str:
    """Triggers a DAG run with a configuration and returns its final state."""
    given: dict[str, Any] = {
        "entry": "/pipelines/answers.py",
        "home": "{{ params.home }}",
        "conf": AUTHORS,
        "poll_interval_s": 0.05,
    } | arguments
    params = {"home": "flights", "memory": Param("1g", type="string"), "conf": {}} | (more or {})
    with DAG("chosen", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params=params) as dag:
        StreamPipelineOperator(task_id="run", **given)
    return str(run_dag(dag, **chosen).state)


def command(homes: Homes) -> list[str]:
    (start,) = homes.starts()
    return list(start["argv"])


def test_a_run_chooses_the_size_of_its_driver_and_executors(homes: Homes) -> None:
    assert run({"memory": "8g"}) == "success"
    assert command(homes)[-4:] == ["--conf", "spark.jars=/opt/udfs.jar", "--conf", "spark.executor.memory=8g"]


def test_a_run_chooses_no_code_and_no_connection(homes: Homes) -> None:
    chosen = {
        "entry": "/tmp/mine.py",
        "python": "/tmp/python",
        "conn_id": "mine",
        "conf": {"spark.jars": "/tmp/mine.jar"},
        "secrets": {"x": "y"},
    }
    assert run(chosen) == "success"
    assert command(homes)[4] == "/pipelines/answers.py"
    assert not [part for part in command(homes) if "mine" in part or "/tmp/python" in part]
    assert homes.starts()[0]["environment"].get("SPARK_JOBS_PARAM_X") is None


def test_a_template_in_the_entry_is_not_rendered(homes: Homes) -> None:
    assert run({"entry": "/tmp/mine"}, entry="{{ dag_run.conf['entry'] }}/answers.py") == "success"
    assert command(homes)[4] == "{{ dag_run.conf['entry'] }}/answers.py"


@pytest.mark.parametrize(
    ("chosen", "arguments"),
    [
        ({"home": "../elsewhere"}, {}),
        ({"home": "file:///tmp/elsewhere"}, {}),
        ({"home": "s3://elsewhere/x"}, {}),
        ({"memory": "1g -Dx=y"}, {}),
        ({"conf": {"spark.jars": "/tmp/mine.jar"}}, {"conf": "{{ params.conf | tojson }}"}),
        ({"memory": "/tmp/mine.jar"}, {"conf": {"spark.jars": "{{ params.memory }}"}}),
        ({"memory": "/tmp/mine.jar"}, {"conf": {"spark.jars": "/opt/{{ params.memory }}.jar"}}),
    ],
)  # fmt: skip
def test_a_setting_that_a_run_may_not_choose_is_refused_before_anything_is_written(
    homes: Homes, chosen: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert run(chosen, **arguments) == "failed"
    assert list(homes.root.iterdir()) == []


@pytest.mark.parametrize(("chosen", "state"), [("data/flights", "success"), ("data/out/flights", "failed")])
def test_a_path_with_a_link_out_of_its_directory_is_refused_before_anything_is_written(
    homes: Homes, tmp_path: Path, chosen: str, state: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/out").symlink_to(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(schema(Parameters)))
    form = params_from_schema(tmp_path / "schema.json", flights=Below(str(tmp_path / "data"), "flights"))
    assert run({"flights": str(tmp_path / chosen)}, form, parameters={"flights": "{{ params.flights }}"}) == state
    assert len(homes.starts()) == (state == "success")


def test_a_run_that_gives_all_sizes_gives_them_as_json(homes: Homes) -> None:
    assert run({"conf": {"spark.executor.instances": 4}}, conf="{{ params.conf | tojson }}") == "success"
    assert command(homes)[-2:] == ["--conf", "spark.executor.instances=4"]


def test_a_misspelled_key_of_a_run_is_named_in_the_tasks_log(homes: Homes, task_log: TaskLog) -> None:
    assert run({"hmoe": "elsewhere", "memory": "8g"}) == "success"
    assert "The conf of this run names hmoe, but the DAG has only these params: home, memory, conf." in task_log.text


def test_a_conf_that_only_sets_params_causes_no_warning(homes: Homes, task_log: TaskLog) -> None:
    assert run({"memory": "8g"}) == "success"
    assert "The conf of this run" not in task_log.text
