"""The flights of 2013, from start to end: one final checkpoint, then three Delta tables, all public or none."""

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
    "bounded_flights",
    description="Hourly and daily delays of 336,776 flights, published together",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "flights.schema.json", flights=Below(DATA, "flights"), warehouse=Below(DATA, "bounded_flights/warehouse")
    ),
    doc_md="""
    ### Delays of the flights that left New York City in 2013

    `load` puts the 336,776 departures into a Delta table. `run` runs `pipelines/flights.py`: three stages in a row, per hour, per
    day, and the spells of days on end in which an airline ran late.

    The input has an end. When it is reached, every stage is drained in order, **one** final checkpoint is completed, and only
    then the tables `hourly`, `daily` and `late_spells` in the warehouse get their rows, each exactly once. Until then a reader
    sees nothing.

    * **It failed, or was killed?** Let it retry, or clear `run`: it goes on from what is durable. No row comes twice.
    * **Trigger it again?** A drained pipeline has nothing left to do: the run ends at once with the same checkpoint.
    * **From the beginning?** Give the operator `fresh=True` and `on_rewind="replace"`.

    Needs the connection `stream_pipeline_default`; the home is `bounded_flights` in its first home root.
    """,
) as dag:
    load = BashOperator(
        task_id="load",
        bash_command='"$PYTHON" "$SCRIPT" year --flights "$FLIGHTS" --airlines "$WAREHOUSE/airlines"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "FLIGHTS": "{{ params.flights }}",
            "WAREHOUSE": "{{ params.warehouse }}",
        },
        append_env=True,
    )
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "flights.py"),
        home="bounded_flights",
        parameters={"flights": "{{ params.flights }}", "warehouse": "{{ params.warehouse }}"},
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    load >> run
