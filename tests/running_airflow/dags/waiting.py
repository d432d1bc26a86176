"""DAGs with one pipeline each. What its driver does is said by the name; the run says where its home is."""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator

START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS: dict[str, dict[str, Any]] = {
    "deferred": {},
    "in_the_worker": {"deferrable": False},
    "left_running": {"cancel_on_kill": False},
    "short_of_time": {"timeout_s": 5.0, "retries": 0},
    "short_of_airflows_time": {"execution_timeout": timedelta(seconds=15), "retries": 0},
}

with DAG("answers_and_tells", start_date=START, schedule=None):
    StreamPipelineOperator(
        task_id="run", entry="/pipelines/answers.py", home="{{ dag_run.conf['home'] }}", outlets=[AssetAlias("tables")]
    )

for behaviour in ("answers", "waits", "failed", "refused"):
    for kind, own in KINDS.items():
        arguments: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)} | own
        with DAG(f"{behaviour}_{kind}", start_date=START, schedule=None, max_active_runs=4):
            StreamPipelineOperator(
                task_id="run",
                entry=f"/pipelines/{behaviour}.py",
                home="{{ dag_run.conf['home'] }}",
                poll_interval_s=0.5,
                max_poll_interval_s=1.0,
                **arguments,
            )
