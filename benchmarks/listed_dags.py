"""``python -m benchmarks.listed_dags DAGS RUNS``: DAGs in the database of ``$AIRFLOW_HOME``, and runs of the first of them."""

import sys

from airflow.models.dag import DagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import update

from benchmarks.stored_dags import create_runs, store_dags

FIRST = "dag-0"


def main(dags: int, runs: int) -> int:
    store_dags(_dag(f"dag-{number}") for number in range(dags))
    with create_session() as session:
        session.execute(update(DagModel).values(is_stale=False))
        create_runs(FIRST, (f"run-{number}" for number in range(runs)), DagRunState.SUCCESS, session)
    return 0


def _dag(dag_id: str) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        EmptyOperator(task_id="task")
    return dag


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
