"""Write, audit, publish: rows are looked at while they are staged, and become public only if they are fit for it. Three ways to end."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, AssetAlias, Param

from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.params import Below, params_from_schema

PIPELINES = Path(__file__).parent / "pipelines"
DATA = os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))
CHECKPOINT = "{{ ti.xcom_pull('run')['checkpoint'] }}"
ENDS = {
    "write_audit_publish": "What passes the audit is published.",
    "write_audit": "Nothing is published: the audit is all that is wanted. `spark-jobs publish` does it by hand.",
    "write_audit_approve_publish": "What passes the audit waits for a person, and is published once it is approved.",
}

for dag_id, end in ENDS.items():
    with DAG(
        dag_id,
        description=end,
        start_date=datetime(2013, 1, 1, tzinfo=UTC),
        schedule=None,
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["spark", "delta", "example"],
        params=params_from_schema(
            PIPELINES / "increments.schema.json",
            arrivals=Below(DATA, f"{dag_id}/arrivals"),
            warehouse=Below(DATA, f"{dag_id}/warehouse"),
        )
        | {
            "day": Param("2013-01-01", type="string", format="date", title="Day", description="Whose flights arrive, of 2013."),
            "most_cancelled": Param(
                0.2, type="number", minimum=0, maximum=1, title="Most cancelled", description="The audit fails above this share."
            ),
        },
        doc_md=f"""
        ### Rows that nobody sees before they were looked at

        `run` runs `pipelines/increments.py` with `publish="external"`: its final checkpoint is complete, all rows are staged, no
        table has changed. `audit` reads the staged rows with Spark and checks them. {end}

        * **The audit fails, or a person rejects**: no table was changed, and the log of `audit` says how to look at the rows. Clear
          the task if they are fit after all; or throw them away with a fresh start of the pipeline.
        * **Days pile up**: a day whose audit failed stays staged; publishing a later one publishes it, too.

        Needs the connection `stream_pipeline_default`; the home is `{dag_id}` in its first home root.
        """,
    ):
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
            task_id="run",
            entry=str(PIPELINES / "increments.py"),
            home=dag_id,
            parameters={"arrivals": "{{ params.arrivals }}", "warehouse": "{{ params.warehouse }}"},
            publish="external",
        )
        audit = BashOperator(
            task_id="audit",
            bash_command='"$PYTHON" "$SCRIPT" "$HOME_URL" "$CHECKPOINT" --most-cancelled "$MOST"',
            env={
                "PYTHON": sys.executable,
                "SCRIPT": str(PIPELINES / "audit_increments.py"),
                "HOME_URL": "{{ ti.xcom_pull('run')['home'] }}",
                "CHECKPOINT": CHECKPOINT,
                "MOST": "{{ params.most_cancelled }}",
            },
            append_env=True,
            retries=0,
        )
        arrive >> run >> audit
        if dag_id != "write_audit":
            publish = PublishCheckpointOperator(
                task_id="publish", pipelines={dag_id: CHECKPOINT}, outlets=[AssetAlias(f"{dag_id}_tables")]
            )
            if dag_id == "write_audit_approve_publish":
                approve = ApprovalOperator(
                    task_id="approve",
                    subject=f"Publish checkpoint {CHECKPOINT} of {dag_id}?",
                    body="The audit has passed; its log says how to look at the rows. Approve, and they become public in every "
                    "table. Reject, and they stay staged: no table changes.",
                )
                audit >> approve >> publish
            else:
                audit >> publish
