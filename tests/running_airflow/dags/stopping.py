"""Tasks that make requests to a stream. They wait at gates where a test wants them to, and run one after another."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from airflow_provider.operators.savepoint import DisposeSavepointOperator, StopWithSavepointOperator, TriggerSavepointOperator
from airflow_provider.sensors.pipeline_state import PipelineStateSensor

if TYPE_CHECKING:
    Asking = TriggerSavepointOperator
else:
    Asking = object
START = datetime(2026, 1, 1, tzinfo=UTC)
HOME = "{{ dag_run.conf['home'] }}"
SOON: dict[str, Any] = {"poll_interval_s": 0.5, "max_poll_interval_s": 1.0, "retry_delay": timedelta(seconds=1)}


class AtGates(Asking):
    """A task that waits at the gate that the DAG run names.

    The gates are before the request, before the deferral, and after the answer.
    At its gate the task creates the file ``waits``, and waits for the file ``open``.
    """

    _conf: Mapping[str, str]

    def execute(self, context: Any) -> Any:
        self._conf = context["dag_run"].conf
        self._pass("asks")
        return super().execute(context)

    def defer_wait(self, *args: Any, **kwargs: Any) -> Any:
        self._pass("defers")
        return super().defer_wait(*args, **kwargs)

    def _result(self, context: Any, *args: Any) -> Any:
        self._conf = context["dag_run"].conf
        self._pass("answers")
        return super()._result(context, *args)

    def _pass(self, gate: str) -> None:
        directory = Path(self._conf["gates"])
        if gate == self._conf["gate"]:
            (directory / "waits").touch()
            while not (directory / "open").exists():
                time.sleep(0.05)


class SavepointAtGates(AtGates, TriggerSavepointOperator):
    """Requests a savepoint."""


class StopAtGates(AtGates, StopWithSavepointOperator):
    """Requests a stop or a drain."""


with DAG("savepoint_at_gates", start_date=START, schedule=None):
    SavepointAtGates(task_id="run", home=HOME, retries=2, **SOON)

for name in ("stop", "drain"):
    with DAG(f"{name}_at_gates", start_date=START, schedule=None):
        StopAtGates(task_id="run", home=HOME, drain=name == "drain", retries=2, **SOON)

with DAG("saved_and_stopped", start_date=START, schedule=None):
    (
        PipelineStateSensor(task_id="runs", home=HOME, **SOON)
        >> TriggerSavepointOperator(task_id="save", home=HOME, **SOON)
        >> StopWithSavepointOperator(task_id="stop", home=HOME, **SOON)
        >> PipelineStateSensor(task_id="has_ended", home=HOME, states=["done"], **SOON)
        >> DisposeSavepointOperator(task_id="dispose", home=HOME, savepoint="{{ ti.xcom_pull('save')['savepoint'] }}")
    )
