"""The example that deploys new code, without Spark: the values that its form allows, and when it goes back to the old code."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_provider.operators.stream_pipeline import order_of
from airflow_provider.orders import StartOrder
from airflow_provider.version_compat import AirflowFailException, ParamValidationError
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.ids import AttemptNumber, RunId
from tests.airflow.conftest import DAGS, connection
from tests.airflow.known_dags import run_dag
from tests.support.answering_driver import LIVE
from tests.support.command_line import UsedHome

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]

STOPPED = {"savepoint": "savepoints/before", "checkpoint": 7}


@pytest.fixture(scope="module")
def dag() -> DAG:
    found: Any = DagBag(dag_folder=str(DAGS / "upgrade_and_rescale.py"), collect_dags=True).dags["upgrade_and_rescale"]
    assert isinstance(found, DAG)
    return found


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsedHome]:
    """The home of the example, with a running driver."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    home = UsedHome(tmp_path, LIVE)
    home.begin()
    (tmp_path / "live_stream").symlink_to(tmp_path / "home")
    with holding(tmp_path / "home" / DRIVER_LOCK, "start-1"):
        yield home


def order(dag: DAG, task_id: str, **form: Any) -> StartOrder:
    """Returns the request of a task for these form values."""
    given = dict(dag.params.dump())
    task: Any = dag.get_task(task_id).prepare_for_execution()
    task.render_template_fields({"params": given | form, "ti": SimpleNamespace(xcom_pull=lambda task_ids: STOPPED)})
    return order_of(task, RunId("monday"))


@pytest.mark.usefixtures("running")
def test_the_form_sets_the_size_of_the_new_code_and_the_old_code_keeps_its_own(dag: DAG) -> None:
    form = {"state_partitions": 8, "conf": {"spark.executor.instances": 8}}
    new, old = order(dag, "new_code", **form), order(dag, "old_code", **form)
    assert (new.state_partitions, new.conf) == (8, {"spark.executor.instances": "8"})
    assert (old.state_partitions, old.conf) == (None, {})
    assert old.restore == new.restore
    assert new.restore is not None
    assert new.restore.savepoint.endswith("/savepoints/before")


@pytest.mark.usefixtures("running")
def test_an_empty_form_leaves_everything_as_it_is(dag: DAG) -> None:
    new = order(dag, "new_code")
    assert (new.state_partitions, new.conf) == (None, {})


@pytest.mark.parametrize("form", [{"state_partitions": 0}, {"state_partitions": "many"}, {"conf": {"spark.jars": "evil.jar"}}])
def test_the_form_accepts_only_settings_that_a_run_may_choose(dag: DAG, form: dict[str, Any]) -> None:
    params = deepcopy(dag.params)
    with pytest.raises(ParamValidationError):
        params.update(form)


def test_a_stop_that_fails_neither_cancels_the_old_code_nor_starts_another(running: UsedHome, dag: DAG) -> None:
    done = run_dag(dag, target="/elsewhere")
    states = {each.task_id: each.state for each in done.get_task_instances()}
    assert states.pop("stop") == "failed"
    assert states.pop("roll_back") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    assert AttemptLease(running.files, AttemptNumber(1)).cancelled() is None
    assert CheckpointRequests(running.files).open() == ()


def roll_back(dag: DAG, **xcoms: Any) -> Any:
    function: Any = dag.get_task("roll_back")
    return function.python_callable(ti=SimpleNamespace(xcom_pull=lambda task_ids: xcoms.get(task_ids)))


def test_the_old_code_is_started_again_only_if_the_new_code_has_no_checkpoint(dag: DAG) -> None:
    assert roll_back(dag, stop=STOPPED) == STOPPED["savepoint"]
    with pytest.raises(AirflowFailException, match="the old code runs on"):
        roll_back(dag)
    with pytest.raises(AirflowFailException, match="has stood its trial"):
        roll_back(dag, stop=STOPPED, on_trial={"checkpoint": 9})
