"""A table's history, then its live tail: one pipeline, no gap and no row twice where they meet."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))

with DAG(
    "backfill_then_live",
    description="Departures and their delays per hour: those there were, then those that come",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "backfill.schema.json",
        arrivals=Below(DATA, "live_stream/arrivals"),
        warehouse=Below(DATA, "backfill_then_live/warehouse"),
    ),
    doc_md="""
    ### History first, then what comes

    `arrive` sees to it that the table has a history. `run` runs `pipelines/backfill.py`, which reads that table twice: `history` ends at
    the version that the table has when the run begins, and `tail`, declared with `after="history"`, begins with the next one. Both go
    through the same stages into the same tables, so that a row is there once whichever side of the seam it is on.

    * **The history may be in any order.** It has no watermark delay: no window closes before its end. With the tail's next row those that
      the tail has passed close, and the pipeline goes on as `live_stream` does.
    * **It was interrupted?** The seam is recorded in the home: every attempt has the same one. A history that has ended is not read again.
    * **New rows?** Trigger `live_arrivals`; it appends to the table that this DAG reads, too.
    * **To end it** mark `run` failed: that cancels the driver. The next run of this DAG goes on there.

    Needs the connection `stream_pipeline_default`; the home is `backfill_then_live` in its first home root.
    """,
) as dag:
    arrive = BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day 2013-01-01 --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "ARRIVALS": "{{ params.arrivals }}",
        },
        append_env=True,
    )
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "backfill.py"),
        home="backfill_then_live",
        parameters={"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
        wait_for="final_checkpoint",
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    arrive >> run
