"""The example that drains every night, without Spark: its first step, and how long it waits."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from spark_jobs.api.load import load_pipeline
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding
from spark_jobs.control.supervision import Restart, next_start
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.protocol.restart_settings import FixedDelay
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import DAGS, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context
from tests.support.answering_driver import LIVE, Driver
from tests.support.command_line import UsedHome

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # Airflow parses a DAG in this process, with the deprecations of its dependencies


@pytest.fixture(scope="module")
def dag() -> DAG:
    found: Any = DagBag(dag_folder=str(DAGS / "nightly_drain.py"), collect_dags=True).dags["nightly_drain"]
    assert isinstance(found, DAG)
    return found


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None) -> UsedHome:
    """The home of the example, whose driver was lost during the day."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    home = UsedHome(tmp_path, LIVE)
    (tmp_path / "nightly_drain").symlink_to(tmp_path / "home")
    home.begin(restart=FixedDelay(attempts=3, delay_ms=60_000))
    return home


def first_step(dag: DAG) -> str:
    branch: Any = dag.get_task("is_there")
    return str(branch.python_callable())


def restart_is_due(home: UsedHome) -> Restart:
    """Returns the decision of the pipeline's supervisor once it has noticed the loss."""
    restart = next_start(home.files, RunId("monday"))
    assert restart is not None
    return restart


def test_a_night_between_the_loss_of_a_driver_and_its_restart_drains_once_the_pipeline_runs_again(
    night: UsedHome, dag: DAG
) -> None:
    """A run in the meantime would take the home from its supervisor, and drain nothing."""
    assert first_step(dag) == "drain"
    restart = restart_is_due(night)
    assert first_step(dag) == "drain"
    drain: Any = dag.get_task("drain").prepare_for_execution()
    with pytest.raises(PipelineRunError, match="did not finish") as caught:
        carry_out(drain, context())
    assert not isinstance(caught.value, PipelineRunRefusedError)

    request = Channel(night.files).request_start(RunId("monday"), parameters={}, restarts=restart.history)
    assert first_step(dag) == "drain"
    drain.wait_limits = WaitLimits(driver_end_s=0.0)  # the lock is held the whole time
    with holding(night.directory / "home" / DRIVER_LOCK, request.request), Driver(night):
        assert first_step(dag) == "drain"
        assert carry_out(drain, context(token="next try"))["checkpoint"] == 1
    assert CheckpointRequests(night.files).open() == ()


def test_a_pipeline_that_was_cancelled_is_started_again(night: UsedHome, dag: DAG) -> None:
    owners = AttemptLease(night.files, AttemptNumber(1))
    owners.cancel(owners.take("a person").owner, "it costs too much")
    assert first_step(dag) == "arrive"


def test_the_first_night_has_nothing_to_drain(tmp_path: Path, dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(tmp_path)))
    assert first_step(dag) == "arrive"


def test_the_retries_of_a_drain_outlast_the_longest_delay_of_a_restart(dag: DAG) -> None:
    drain: Any = dag.get_task("drain")
    strategy = load_pipeline(str(DAGS / "pipelines/live.py")).restart
    assert strategy is not None
    assert strategy.options["max_backoff"] == "2 minutes"
    assert drain.retries * drain.retry_delay >= timedelta(minutes=4)
