"""New code for a pipeline that is running: it begins with the old one's savepoint, and gives way to it if it does not work."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.savepoint import StopWithSavepointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import params_from_schema
from airflow_provider.retry import PipelineRetryPolicy
from airflow_provider.sensors.checkpoint import CheckpointSensor

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))
HOME = "live_stream"
SAVEPOINT = "{{ ti.xcom_pull('stop')['savepoint'] }}"
PARAMETERS = {"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"}

with DAG(
    "upgrade",
    description="New code for live_stream, and back if it does not work",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "retry_policy": PipelineRetryPolicy()},
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "live.schema.json", arrivals=f"{DATA}/live_stream/arrivals", warehouse=f"{DATA}/live_stream/warehouse"
    )
    | {
        "target": Param(
            None,
            type=["null", "string"],
            title="Target",
            description="Directory of the savepoint, inside the home roots, not there yet. Empty: below the home.",
        )
    },
    doc_md="""
    ### New code without a lost or a doubled row

    `stop` stops the pipeline that `live_stream` runs, with a savepoint. `new_code` runs `pipelines/live_next.py` from there, over the same
    tables, and supervises it from now on. `on_trial` gives it ten minutes for a first checkpoint.

    * **It has one**: that was the upgrade. `new_code` lives on like `run` of `live_stream`; `live_stream_control` stops it, too.
    * **It has none**: `cancel_new` ends it, whatever it does, and `old_code` runs `pipelines/live.py` from the *same* savepoint. Nothing of
      the new code was public: only a checkpoint is.
    * **The checkpoint comes in the last moment?** Then `old_code` is refused, because the tables have rows from after the savepoint, and
      changes nothing.

    Stages, inputs and event times have to be as they were; functions may differ. The savepoint stays until you dispose of it.

    Needs the connection `stream_pipeline_default`; the home is `live_stream` in its first home root.
    """,
):
    stop = StopWithSavepointOperator(task_id="stop", home=HOME, target="{{ params.target or '' }}")
    new_code = StreamPipelineOperator(
        task_id="new_code", entry=str(PIPELINES / "live_next.py"), home=HOME, parameters=PARAMETERS, restore=SAVEPOINT
    )
    on_trial = CheckpointSensor(
        task_id="on_trial",
        home=HOME,
        run_of_task="new_code",
        newer_than="{{ ti.xcom_pull('stop')['checkpoint'] + 1 }}",  # the next one is the savepoint itself, in its new line
        timeout=timedelta(minutes=10).total_seconds(),
    )
    cancel_new = CancelPipelineOperator(task_id="cancel_new", home=HOME, trigger_rule="all_failed")
    old_code = StreamPipelineOperator(
        task_id="old_code", entry=str(PIPELINES / "live.py"), home=HOME, parameters=PARAMETERS, restore=SAVEPOINT
    )
    stop >> [new_code, on_trial]
    on_trial >> cancel_new >> old_code
