"""The pipelines page over homes of a test."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.control_dag import control_dag
from airflow_provider.pages import pipelines
from airflow_provider.pages.kept_looks import KeptLooks
from tests.airflow.browser import init_auth_manager
from tests.airflow.conftest import connection
from tests.airflow.known_dags import store_dag
from tests.support.command_line import UsedHome

OF_A_DAG = "airflow/flights/monday/run"
HOSTILE = "</td><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202egnp.exe"


@pytest.fixture(scope="module", autouse=True)
def auth() -> None:
    store_dag(DAG("flights", schedule=None))
    init_auth_manager()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home root of a connection, for pages without cached looks."""
    monkeypatch.setattr(pipelines, "_kept", KeptLooks())
    monkeypatch.setattr(pipelines, "_stores", {})
    monkeypatch.setattr(pipelines, "FRESH_S", -1.0)
    monkeypatch.setattr(pipelines, "_CONTROLS_FRESH_S", -1.0)
    (tmp_path / "homes").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path / "homes")))
    return tmp_path / "homes"


def used_home(root: Path, name: str, run: str) -> UsedHome:
    """A home in a directory of this name, whose driver was lost."""
    (root / name).mkdir()
    home = UsedHome(root / name)
    home.begin(run=run)
    return home


def controlled(home: UsedHome, **arguments: Any) -> str:
    """Creates a DAG that controls a home, and returns its id."""
    dag_id = f"control_{sha256(home.url.encode()).hexdigest()}"  # unique, because Airflow stores a changed DAG only after a while
    store_dag(control_dag(dag_id, home=home.url, **arguments))
    return dag_id
