"""``python -m benchmarks.deferred_tasks``: tasks that are deferred already, in the database of ``$AIRFLOW_HOME``.

Each line of its input is one: the class of a trigger and its arguments, as JSON. What a worker does to defer a task is left out.
"""

import json
import sys
from datetime import UTC, datetime

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy.orm import Session

from benchmarks.stored_dags import create_runs, store_dags
from benchmarks.triggerer import RUN, TASK, TASKS

DAG_ID = "waiting"


def main() -> int:
    triggers = [json.loads(line) for line in sys.stdin]
    with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        for number in range(TASKS):
            EmptyOperator(task_id=f"{TASK}{number:02}")
    store_dags([dag])
    with create_session() as session:
        runs = create_runs(
            DAG_ID, (f"{RUN}{number}" for number in range(-(-len(triggers) // TASKS))), DagRunState.RUNNING, session
        )
        tasks = [task for run in runs for task in sorted(run.get_task_instances(session=session), key=lambda task: task.task_id)]
        for task, (classpath, arguments) in zip(tasks, triggers, strict=False):
            _defer(task, Trigger(classpath=classpath, kwargs=arguments), session)
    return 0


def _defer(task: TaskInstance, trigger: Trigger, session: Session) -> None:
    session.add(trigger)
    session.flush()
    task.trigger_id, task.state = trigger.id, TaskInstanceState.DEFERRED
    task.next_method, task.next_kwargs, task.try_number = "execute_complete", {}, 1


if __name__ == "__main__":
    sys.exit(main())
