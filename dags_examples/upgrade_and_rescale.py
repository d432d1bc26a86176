"""New code for a running pipeline, in another parallelism: it begins with the old one's savepoint, and gives way to it if it fails."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider.exceptions import airflow_error
from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.savepoint import StopWithSavepointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.spark_conf import RUN_MAY_SET
from spark_jobs import RejectedError

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))
HOME = "live_stream"
SAVEPOINT = "{{ ti.xcom_pull('stop')['savepoint'] }}"
PARAMETERS = {"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"}

with DAG(
    "upgrade_and_rescale",
    description="New code for live_stream, in another parallelism, and back if it fails",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["spark", "delta", "example"],
    params=params_from_schema(
        PIPELINES / "live.schema.json",
        arrivals=Below(DATA, "live_stream/arrivals"),
        warehouse=Below(DATA, "live_stream/warehouse"),
    )
    | {
        "state_partitions": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="State partitions",
            description="In how many partitions the new code keeps its state. Empty: in as many as it is.",
        ),
        "conf": Param(
            None,
            type=["null", "object"],
            propertyNames={"enum": sorted(RUN_MAY_SET)},
            title="Spark settings",
            description='How big the new code runs: {"spark.executor.instances": 8}. Empty: as the connection says.',
        ),
        "target": Param(
            None,
            type=["null", "string"],
            title="Target",
            description="Directory of the savepoint, inside the home roots, not there yet. Empty: below the home.",
        ),
    },
    doc_md="""
    ### New code, and another parallelism, without a lost or a doubled row

    `stop` stops the pipeline that `live_stream` runs, with a savepoint. `new_code` runs `pipelines/live_next.py` from there, over the same
    tables, with its state in as many partitions as you say, and supervises it from now on. `on_trial` gives it ten minutes for a first
    checkpoint.

    * **It has one**: that was the upgrade. `new_code` lives on like `run` of `live_stream`; `live_stream_control` stops it, too.
      See that rows arrive meanwhile, and look for restarts with `spark-jobs status`: code that has met no row has proved little, and a
      stage that fails at every row may have a checkpoint in between.
    * **It has none, or fails for good before**: `roll_back` says so, `cancel_new` ends it, whatever it does, and `old_code` runs
      `pipelines/live.py` from the *same* savepoint, in as many partitions as before. Nothing of the new code was public: only a checkpoint
      is.
    * **The checkpoint comes in the last moment?** Then `old_code` is refused, because the tables have rows from after the savepoint, and
      changes nothing.
    * **The stop fails?** Then nothing follows, and the old code runs on.

    Stages, inputs and event times have to be as they were; functions may differ. The savepoint stays until you dispose of it.

    Needs the connection `stream_pipeline_default`; the home is `live_stream` in its first home root.
    """,
):
    stop = StopWithSavepointOperator(task_id="stop", home=HOME, target="{{ params.target or '' }}")
    new_code = StreamPipelineOperator(
        task_id="new_code",
        entry=str(PIPELINES / "live_next.py"),
        home=HOME,
        parameters=PARAMETERS,
        restore=SAVEPOINT,
        state_partitions="{{ params.state_partitions or '' }}",
        conf="{{ params.conf | tojson }}",
    )
    on_trial = CheckpointSensor(
        task_id="on_trial",
        home=HOME,
        run_of_task="new_code",
        newer_than="{{ ti.xcom_pull('stop')['checkpoint'] + 1 }}",  # the next one is the savepoint itself, in its new line
        timeout=timedelta(minutes=10).total_seconds(),
    )

    @task(trigger_rule="one_failed")
    def roll_back(ti: Any = None) -> str:
        """The savepoint that the old code goes back to, where the new code was not to stay."""
        stopped = ti.xcom_pull(task_ids="stop")
        if stopped is None:
            raise airflow_error(RejectedError("Nothing was stopped: the old code runs on, and is not to be cancelled."))
        if ti.xcom_pull(task_ids="on_trial") is not None:
            raise airflow_error(RejectedError("The new code has stood its trial, and ended later: clear new_code to go on."))
        return str(stopped["savepoint"])

    cancel_new = CancelPipelineOperator(task_id="cancel_new", home=HOME)
    old_code = StreamPipelineOperator(
        task_id="old_code", entry=str(PIPELINES / "live.py"), home=HOME, parameters=PARAMETERS, restore=SAVEPOINT
    )
    stop >> [new_code, on_trial] >> roll_back() >> cancel_new >> old_code
