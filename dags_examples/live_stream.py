"""A pipeline without an end, supervised for as long as it lives; and what delivers its rows."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))
ARRIVALS = Below(DATA, "live_stream/arrivals")
FIRST_DAY = "2013-01-01"


def arrive(day: str) -> BashOperator:
    """Appends a day's flights to the table that the pipeline reads."""
    return BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day "$DAY" --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "DAY": day,
            "ARRIVALS": "{{ params.arrivals }}",
        },
        append_env=True,
    )


with DAG(
    "live_stream",
    description="Departures and their delays per hour, while they come",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "live.schema.json",
        arrivals=ARRIVALS,
        warehouse=Below(DATA, "live_stream/warehouse"),
    ),
    doc_md="""
    ### A stream that lives in a task

    `arrive` sees to it that there is a table. `run` runs `pipelines/live.py`, which has no end: every 30 seconds a checkpoint, and with
    it new rows in `departed` and `hourly_delays`. The task waits in the triggerer and holds no worker's slot.

    * **The driver failed, or was lost?** The pipeline's restart strategy starts the next one: after 5 seconds, then later and later, 2
      minutes at most. The task stays in its first try; the log has each restart with its reason.
    * **It failed for good?** What no restart can heal ends the task at once. Mend it, and clear `run`: it goes on where it was.
    * **New rows?** Trigger `live_arrivals` with another day.
    * **To end it** trigger `live_stream_control`: it stops the pipeline with a savepoint, drains or cancels it. Or mark `run` failed: that
      cancels the driver. What was staged is kept, and the next run of this DAG goes on there.

    Needs the connection `stream_pipeline_default`; the home is `live_stream` in its first home root.
    """,
) as dag:
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "live.py"),
        home="live_stream",
        parameters={"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
        wait_for="final_checkpoint",
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    arrive(FIRST_DAY) >> run

with DAG(
    "live_arrivals",
    description="A day's flights more, for live_stream and backfill_then_live",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    params={
        "day": Param("2013-01-02", type="string", format="date", title="Day", description="Whose flights arrive, once."),
        "arrivals": Param(
            ARRIVALS.default, type="string", pattern=ARRIVALS.pattern, title="Arrivals", description="Delta table to append to."
        ),
    },
    doc_md="""
    ### Whatever delivers your rows

    Appends the flights of one day of 2013 to the table that `live_stream` and `backfill_then_live` read while it grows. Days come in
    their order: a row that is more than a day behind the newest one is late. A day that has arrived does not arrive again.
    """,
):
    arrive("{{ params.day }}")
