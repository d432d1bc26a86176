"""``python -m benchmarks.listed_dags DAGS RUNS``: DAGs in the database of ``$AIRFLOW_HOME``, and runs of the first of them."""

import sys
from datetime import UTC, datetime, timedelta

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.utils import db
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import update

FIRST = "dag-0"


def main(dags: int, runs: int) -> int:
    db.initdb()
    bag = DagBag(dag_folder="/dev/null", collect_dags=False)
    for number in range(dags):
        with DAG(f"dag-{number}", schedule=None) as dag:
            EmptyOperator(task_id="task")
        bag.bag_dag(dag)
    with create_session() as session:
        bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
        bundles.sync_bundles_to_db(session=session)
    sync_bag_to_db(bag, "dags-folder", None)
    with create_session() as session:
        session.execute(update(DagModel).values(is_stale=False))
        first = DBDagBag().get_latest_version_of_dag(FIRST, session=session)
        assert first is not None
        for number in range(runs):
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
            first.create_dagrun(
                run_id=f"run-{number}",
                logical_date=at,
                data_interval=(at, at),
                run_after=at,
                run_type=DagRunType.MANUAL,
                state=DagRunState.SUCCESS,
                triggered_by=DagRunTriggeredByType.TEST,
                session=session,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
