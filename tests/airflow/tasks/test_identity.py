"""The id of a run is readable and names its DAG."""

from types import SimpleNamespace

import pytest

from airflow_provider.tasks.identity import dag_of, run_id_of
from spark_jobs.protocol.ids import RunId


@pytest.mark.parametrize(
    ("dag_id", "run_id", "task_id", "map_index", "expected"),
    [
        (
            "sessions",
            "scheduled__2026-03-02T00:00:00+00:00",
            "run",
            -1,
            "airflow/sessions/scheduled__2026-03-02T00:00:00+00:00/run",
        ),
        ("sessions", "manual__1", "group.run", None, "airflow/sessions/manual__1/group.run"),
        ("sessions", "manual__1", "run", 3, "airflow/sessions/manual__1/run/3"),
        ("a~b", "by hand/é", "run", -1, "airflow/a~b/by%20hand%2F%C3%A9/run"),
    ],
)
def test_the_id_of_a_run_is_as_the_reference_says(
    dag_id: str, run_id: str, task_id: str, map_index: int | None, expected: str
) -> None:
    task = SimpleNamespace(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    assert run_id_of(task) == expected
    assert dag_of(run_id_of(task)) == dag_id


def test_another_task_of_the_same_dag_run_is_not_mapped() -> None:
    task = SimpleNamespace(dag_id="sessions", run_id="manual__1", task_id="wait", map_index=3)
    assert run_id_of(task, task_id="run") == "airflow/sessions/manual__1/run"


@pytest.mark.parametrize("run", ["by hand", "airflow/sessions", "airflow", ""])
def test_a_run_that_no_task_requested_has_no_dag(run: str) -> None:
    assert dag_of(RunId(run)) is None
