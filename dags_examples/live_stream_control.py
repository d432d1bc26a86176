"""Controls the pipeline of ``live_stream``: by a form, or over REST."""

import os
from pathlib import Path

from airflow_provider.control_dag import control_dag
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))

control_dag(
    "live_stream_control",
    home="live_stream",
    pipeline={
        "entry": str(PIPELINES / "live.py"),
        "parameters": {"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
    },
    params=params_from_schema(
        PIPELINES / "live.schema.json",
        arrivals=Below(DATA, "live_stream/arrivals"),
        warehouse=Below(DATA, "live_stream/warehouse"),
    ),
    tags=["spark", "delta", "example"],
)
