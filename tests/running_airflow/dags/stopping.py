"""A stop that waits where a test wants it to: before it asks, before it is deferred, or once it has its answer."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider.operators.savepoint import StopWithSavepointOperator


class StopAtGates(StopWithSavepointOperator):
    """Waits at the gate that the DAG run names until there is a file ``open``; says by a file ``waits`` that it does."""

    def execute(self, context: Any) -> Any:
        self._conf = context["dag_run"].conf
        self._pass("asks")
        return super().execute(context)

    def _defer(self, *args: Any) -> Any:
        self._pass("defers")
        return super()._defer(*args)

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


with DAG("stops_at_gates", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None):
    StopAtGates(
        task_id="run",
        home="{{ dag_run.conf['home'] }}",
        poll_interval_s=0.5,
        max_poll_interval_s=1.0,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
