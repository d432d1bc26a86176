"""``python -m benchmarks.deferred_tasks``: tasks that are deferred already, in the database of ``$AIRFLOW_HOME``.

Each line of its input is one: the class of a trigger and its arguments, as JSON. What a worker does to defer a task is left out.
"""

import json
import sys
from datetime import UTC, datetime, timedelta

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbag import DBDagBag
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.utils import db
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy.orm import Session

from benchmarks.triggerer import RUN, TASK, TASKS

DAG_ID = "waiting"


def main() -> int:
    db.initdb()
    triggers = [json.loads(line) for line in sys.stdin]
    runs = -(-len(triggers) // TASKS)
    with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        for number in range(TASKS):
            EmptyOperator(task_id=f"{TASK}{number:02}")
    with create_session() as session:
        bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
        bundles.sync_bundles_to_db(session=session)
    bag = DagBag(dag_folder="/dev/null", collect_dags=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    with create_session() as session:
        tasks = [task for number in range(runs) for task in _run(number, session)]
        for task, (classpath, arguments) in zip(tasks, triggers, strict=False):
            _defer(task, Trigger(classpath=classpath, kwargs=arguments), session)
    return 0


def _run(number: int, session: Session) -> list[TaskInstance]:
    dag = DBDagBag().get_latest_version_of_dag(DAG_ID, session=session)
    assert dag is not None
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    run = dag.create_dagrun(
        run_id=f"{RUN}{number}",
        logical_date=at,
        data_interval=(at, at),
        run_after=at,
        run_type=DagRunType.MANUAL,
        state=DagRunState.RUNNING,
        triggered_by=DagRunTriggeredByType.TEST,
        session=session,
    )
    return sorted(run.get_task_instances(session=session), key=lambda task: task.task_id)


def _defer(task: TaskInstance, trigger: Trigger, session: Session) -> None:
    session.add(trigger)
    session.flush()
    task.trigger_id, task.state = trigger.id, TaskInstanceState.DEFERRED
    task.next_method, task.next_kwargs, task.try_number = "execute_complete", {}, 1


if __name__ == "__main__":
    sys.exit(main())
