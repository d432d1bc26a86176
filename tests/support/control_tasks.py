"""Tasks of a running Airflow."""

import time
from dataclasses import replace

from airflow_provider.triggers.home import SETTLE_S
from tests.support.running_airflow import TaskRun, until

LATE_S = 300.0


def task(run: TaskRun, task_id: str) -> TaskRun:
    return replace(run, task_id=task_id)


def answer(run: TaskRun, option: str, task_id: str = "approve") -> None:
    """Chooses an option as a user of the UI."""
    approve = task(run, task_id)
    approve.reaches("awaiting_input", deadline_s=LATE_S)
    asked_s = time.monotonic()
    until(
        lambda: time.monotonic() - asked_s >= SETTLE_S,
        "a person reads the question: Airflow fails a task that is answered at once",
    )
    chosen = {"chosen_options": [option], "params_input": {}}
    path = f"/api/v2/{approve.path}/-1/hitlDetails"
    assert run.airflow.call("PATCH", path, chosen).status_code == 200


def ended(run: TaskRun) -> dict[str, str]:
    """Waits for the end of the DAG run and returns the state of each task."""
    path = f"dags/{run.dag_id}/dagRuns/{run.run_id}"
    until(lambda: run.airflow.get(path)["state"] in ("success", "failed"), "the DAG run has ended", LATE_S)
    return {each["task_id"]: each["state"] for each in run.airflow.get(f"{path}/taskInstances")["task_instances"]}
