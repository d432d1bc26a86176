"""A Spark Declarative Pipelines project, audited before its tables are public."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator

PIPELINES = Path(__file__).parent / "pipelines"
DATA = Path(os.environ.get("SPARK_JOBS_EXAMPLES", str(Path.home() / "spark-jobs-examples"))) / "declarative_project"
CHECKPOINT = "{{ ti.xcom_pull('run')['checkpoint'] }}"

with DAG(
    "declarative_project",
    description="A project for spark-pipelines, with one checkpoint for all of its tables",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["spark", "delta", "example"],
    params={"day": Param("2013-01-01", type="string", format="date", title="Day", description="Whose flights arrive, of 2013.")},
    doc_md="""
    ### The files of `spark-pipelines`, without `spark-pipelines`

    `run` runs the project `pipelines/departures`, in SQL and Python, up to what has arrived. Its final checkpoint is complete and
    all rows are staged, but no table has changed. `audit` checks the staged hours, and `publish` makes both tables public.

    The tables are in Spark's catalog. This example keeps a metastore of its own next to its data.

    Needs the connection `stream_pipeline_default`; the home is `declarative_project` in its first home root.
    """,
) as dag:
    arrive = BashOperator(
        task_id="arrive",
        bash_command='"$PYTHON" "$SCRIPT" day "$DAY" --flights "$ARRIVALS"',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "flights_data.py"),
            "DAY": "{{ params.day }}",
            "ARRIVALS": str(DATA / "arrivals"),
        },
        append_env=True,
    )
    run = StreamPipelineOperator(
        task_id="run",
        entry=str(PIPELINES / "departures/spark-pipeline.yml"),
        home="declarative_project",
        publish="external",
        conf={
            "spark.departures.arrivals": str(DATA / "arrivals"),
            "spark.sql.warehouse.dir": str(DATA / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={DATA / 'metastore'};create=true",
        },
    )
    audit = BashOperator(
        task_id="audit",
        bash_command='"$PYTHON" "$SCRIPT" "$HOME_URL" "$CHECKPOINT" --most-cancelled 0.2',
        env={
            "PYTHON": sys.executable,
            "SCRIPT": str(PIPELINES / "audit_increments.py"),
            "HOME_URL": "{{ ti.xcom_pull('run')['home'] }}",
            "CHECKPOINT": CHECKPOINT,
        },
        append_env=True,
        retries=0,
    )
    publish = PublishCheckpointOperator(task_id="publish", pipelines={"declarative_project": CHECKPOINT})
    arrive >> run >> audit >> publish
