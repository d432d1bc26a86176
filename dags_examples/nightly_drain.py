"""A stream whose day ends: every night it is drained, so that the day's windows are closed and public, and begins anew from there."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider.operators.savepoint import StopWithSavepointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))
HOME = "nightly_drain"
RETRY_DELAY = timedelta(seconds=30)
OUTLAST_BACKOFF = 10
"""So many retries of ``drain`` take longer than the longest delay of a restart, which is two minutes in ``pipelines/live.py``."""

with DAG(
    "nightly_drain",
    description="Departures and their delays per hour, closed every night",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=2,
    default_args={"retries": 2, "retry_delay": RETRY_DELAY},
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "live.schema.json",
        arrivals=Below(DATA, "nightly_drain/arrivals"),
        warehouse=Below(DATA, "nightly_drain/warehouse"),
    ),
    doc_md="""
    ### A day that is closed

    Trigger it once a night; in your own DAG that is `schedule="0 3 * * *"`.

    A live stream emits a window when the watermark has passed it: that of `pipelines/live.py` is a day late. `drain` flushes all of them
    at night, in one checkpoint, and stops the pipeline. `run` begins again with its savepoint, and lives until the next night's `drain`,
    which ends it with success: so there are two DAG runs for a moment, and one otherwise.

    * **The first night** there is nothing to drain: `is_there` leaves `drain` out, and `run` begins.
    * **The driver failed for good during the day?** The same: the next night's run goes on where it was, and is drained the night after.
    * **The driver was lost, and its restart is not due yet?** `drain` is tried again until the pipeline runs. If it never does, `drain`
      fails after some minutes, and nothing is begun beside the night before: clear that night's `run`, or mark `drain` as a success to
      go on without it.
    * **A row that comes after the night, for a window of before**, makes a window of its own with the same time. Drain when a day is
      complete; else let the watermark do it.
    * **The savepoints** are below the home, one a night; they are yours to dispose of.

    Needs the connection `stream_pipeline_default`; the home is `nightly_drain` in its first home root.
    """,
):

    @task.branch
    def is_there() -> str:
        """The first step of this night: a pipeline between two attempts is there, too."""
        from airflow_provider.hooks.stream_pipeline import StreamPipelineHook

        return "drain" if StreamPipelineHook().goes_on(HOME) else "arrive"

    drain = StopWithSavepointOperator(task_id="drain", home=HOME, drain=True, retries=OUTLAST_BACKOFF)
    arrive = BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day 2013-01-01 --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "ARRIVALS": "{{ params.arrivals }}",
        },
        append_env=True,
        trigger_rule="none_failed_min_one_success",
    )
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "live.py"),
        home=HOME,
        parameters={"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
        restore="{{ (ti.xcom_pull('drain') or {}).get('savepoint', '') }}",
        allow_drained="{{ ti.xcom_pull('drain') is not none }}",
    )
    first = is_there()
    first >> [drain, arrive]
    drain >> arrive >> run
