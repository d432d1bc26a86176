"""A task's own time limit and Airflow's, whichever comes first, deferred or not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.tasks.time_limits import TimeLimits
from tests.airflow.conftest import Homes
from tests.airflow.flights import until
from tests.airflow.known_dags import run_dag


@pytest.mark.parametrize(
    ("own_s", "airflows_s", "first_s", "airflows_is_first"),
    [
        (None, None, None, False),
        (5.0, None, 5.0, False),
        (None, 7.0, 7.0, True),
        (5.0, 7.0, 5.0, False),
        (7.0, 5.0, 5.0, True),
        (5.0, 5.0, 5.0, True),
    ],
)
def test_the_shorter_limit_ends_a_deferred_wait(
    own_s: float | None, airflows_s: float | None, first_s: float | None, airflows_is_first: bool
) -> None:
    limits = TimeLimits(own_s, airflows_s, began_at=100.0)
    assert (limits.first_s, limits.airflows_is_first) == (first_s, airflows_is_first)
    assert limits.first_at == (None if first_s is None else 100.0 + first_s)
    assert limits.own_at == (None if own_s is None else 100.0 + own_s)


def run(**arguments: Any) -> str:
    with DAG("limited", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        StreamPipelineOperator(
            task_id="run", entry="/pipelines/waits.py", home="flights", poll_interval_s=0.05, retries=0, **arguments
        )
    return str(run_dag(dag).state)


@pytest.mark.airflow
@pytest.mark.filterwarnings("ignore")  # Airflow runs in this process, with the deprecations of its dependencies
@pytest.mark.parametrize(
    "deferrable", [pytest.param(True, id="deferred"), pytest.param(False, id="in the worker", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    "cancel_on_kill", [pytest.param(True, id="cancels"), pytest.param(False, id="leaves it", marks=pytest.mark.nightly)]
)
def test_airflows_time_limit_ends_the_driver_of_a_task_that_cancels(
    homes: Homes, settled: None, deferrable: bool, cancel_on_kill: bool
) -> None:
    limit = timedelta(seconds=8)  # the driver has sent a heartbeat by then
    assert run(execution_timeout=limit, deferrable=deferrable, cancel_on_kill=cancel_on_kill) == "failed"
    hook = StreamPipelineHook()
    if cancel_on_kill:
        until(lambda: not hook.is_at_work("flights"))
    assert hook.is_at_work("flights") is not cancel_on_kill


@pytest.mark.airflow
@pytest.mark.filterwarnings("ignore")  # Airflow runs in this process, with the deprecations of its dependencies
@pytest.mark.parametrize(
    "deferrable", [pytest.param(True, id="deferred", marks=pytest.mark.nightly), pytest.param(False, id="in the worker")]
)
def test_a_tasks_own_time_limit_leaves_the_driver_running(homes: Homes, settled: None, deferrable: bool) -> None:
    assert run(timeout_s=8.0, deferrable=deferrable) == "failed"
    assert StreamPipelineHook().is_at_work("flights")
