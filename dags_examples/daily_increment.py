"""A pipeline that a DAG runs every day: each run takes up what has arrived since, with its state intact."""

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

with DAG(
    "daily_increment",
    description="Each day's flights, added to tables per hour and per day",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "increments.schema.json",
        arrivals=Below(DATA, "daily_increment/arrivals"),
        warehouse=Below(DATA, "daily_increment/warehouse"),
    )
    | {
        "day": Param(
            None, type=["null", "string"], format="date", title="Day", description="Whose flights arrive. Empty: the run's date."
        ),
        "on_end": Param(
            "suspend",
            type="string",
            enum=["suspend", "drain"],
            title="At the end of the input",
            description="suspend: windows that are still open wait for the next run. drain: they are closed too, for good.",
        ),
    },
    doc_md="""
    ### One run a day over what has arrived

    `arrive` appends the flights of the run's date, a day of 2013, to a Delta table: it stands for whatever delivers your rows.
    `run` runs `pipelines/increments.py` with `on_end="suspend"`: it reads to the table's end, closes the windows that the day's
    watermark has passed, publishes them, and ends. The next run goes on, with the open windows as they were.

    * **Rows of a day may come in any order** (`hold_watermark`): none is late within its run; between runs the delay is one hour.
    * **Days come in their order**, one run at a time (`max_active_runs=1`). For some days at once:
      `airflow backfill create --dag-id daily_increment --from-date 2013-01-01 --to-date 2013-01-07 --max-active-runs 1`.
      A backfill has a `max_active_runs` of its own, which is 10 unless given.
    * **The last day**: trigger it with `{"on_end": "drain"}`; the open windows are closed and the pipeline is finished.
    * **A failed day**: let it retry, or clear `run`. A day that was answered is not run again.

    Needs the connection `stream_pipeline_default`; the home is `daily_increment` in its first home root.
    """,
) as dag:
    arrive = BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day "$DAY" --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "DAY": "{{ params.day or ds }}",
            "ARRIVALS": "{{ params.arrivals }}",
        },
        append_env=True,
    )
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "increments.py"),
        home="daily_increment",
        parameters={"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
        on_end="{{ params.on_end }}",
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    arrive >> run
