"""DAGs and their runs in the database of ``$AIRFLOW_HOME``, without a DAG file."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.utils import db
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy.orm import Session


def store_dags(dags: Iterable[DAG]) -> None:
    """Creates the database, with these DAGs."""
    db.initdb()
    with create_session() as session:
        bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
        bundles.sync_bundles_to_db(session=session)
    bag = DagBag(dag_folder="/dev/null", collect_dags=False)
    for dag in dags:
        bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


def create_runs(dag_id: str, run_ids: Iterable[str], state: DagRunState, session: Session) -> list[DagRun]:
    """Creates runs of a stored DAG, a minute after one another."""
    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
    assert dag is not None
    runs = []
    for number, run_id in enumerate(run_ids):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
        run = dag.create_dagrun(
            run_id=run_id,
            logical_date=at,
            data_interval=(at, at),
            run_after=at,
            run_type=DagRunType.MANUAL,
            state=state,
            triggered_by=DagRunTriggeredByType.TEST,
            session=session,
        )
        runs.append(run)
    return runs
