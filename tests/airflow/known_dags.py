"""DAGs that tests create, in the database of the tests' Airflow."""

import os
from functools import cache
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk import DAG
from airflow.utils import db
from airflow.utils.session import create_session


@cache
def _database() -> None:
    db.initdb()
    with create_session() as session:
        bundles: Any = DagBundlesManager
        bundles().sync_bundles_to_db(session=session)


def store_dag(dag: DAG) -> None:
    """Adds a DAG to Airflow's database."""
    _database()
    bag = DagBag(dag_folder=os.devnull, collect_dags=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


def run_dag(dag: DAG, **conf: Any) -> Any:
    """Runs a DAG to its end in this process and returns its DAG run."""
    store_dag(dag)
    return dag.test(run_conf=conf)
