"""A pipeline that goes on without rows that fail it. A person decides: they are accepted as lost, or processed by corrected code."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.sdk import DAG, Param, task

from airflow_provider.operators.losses import AcceptLossOperator, BackfillLossOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))

with DAG(
    "approximate_stream",
    description="Rows that fail a stage are left out, and accepted as lost or backfilled by a person's choice.",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "approximate.schema.json",
        arrivals=Below(DATA, "approximate_stream/arrivals"),
        warehouse=Below(DATA, "approximate_stream/warehouse"),
    )
    | {"day": Param("2013-01-01", type="string", format="date", title="Day", description="Whose flights arrive, of 2013.")},
    doc_md="""
    ### Rows that fail, and what becomes of them

    `run` runs `pipelines/approximate.py`. Its code fails with a cancelled flight, which has no delay. `tolerate=` lets the stage
    continue without the files with such flights: the table `delays` lacks their rows, and the loss ledger has each of these files.

    `choose` waits for a person, unless nothing was lost:

    * **accept**: the rows stay out.
    * **backfill**: `pipelines/approximate_next.py`, the corrected code, processes the rows. `delays` then has every flight, once.

    Needs the connection `stream_pipeline_default`; the home is `approximate_stream` in its first home root.
    """,
):
    parameters = {"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"}
    arrive = BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day "$DAY" --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "DAY": "{{ params.day }}",
            "ARRIVALS": "{{ params.arrivals }}",
        },
        append_env=True,
    )
    run = StreamPipelineOperator(
        task_id="run", entry=str(PIPELINES / "approximate.py"), home="approximate_stream", parameters=parameters
    )

    @task
    def open_losses(facts: dict[str, Any]) -> list[str]:
        return [loss["loss"] for loss in facts["losses"] if loss["open"]]

    @task.branch
    def look(losses: list[str]) -> str | None:
        return "choose" if losses else None

    choose = HITLBranchOperator(
        task_id="choose",
        subject="Flights are left out of delays. What becomes of them?",
        body="spark-jobs losses --home {{ ti.xcom_pull('run')['home'] }} lists them: {{ ti.xcom_pull('open_losses') }}.",
        options=["backfill", "accept"],
    )
    facts: Any = run.output
    lost: Any = open_losses(facts)
    accept = AcceptLossOperator(task_id="accept", home="approximate_stream", losses=lost, reason="accepted in Airflow")
    backfill = BackfillLossOperator(
        task_id="backfill",
        entry=str(PIPELINES / "approximate_next.py"),
        home="approximate_stream",
        parameters=parameters,
        losses=lost,
    )
    arrive >> run
    look(lost) >> choose >> [accept, backfill]
