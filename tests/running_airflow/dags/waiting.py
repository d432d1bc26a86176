"""DAGs with one pipeline or sensor each. The name selects the behaviour of the driver, and the DAG run names the home."""

import logging
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAlias, AssetWatcher, PartitionedAssetTimetable

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.partitions import EmitFinishedPartitionsOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.retry import PipelineRetryPolicy
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.triggers.publication import PublicationTrigger
from spark_jobs.storage.files import local_path

START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS: dict[str, dict[str, Any]] = {
    "deferred": {},
    "in_the_worker": {"deferrable": False},
    "left_running": {"cancel_on_kill": False},
    "short_of_time": {"timeout_s": 10.0, "retries": 0},
    "short_of_airflows_time": {"execution_timeout": timedelta(seconds=15)},
    "short_of_airflows_time_in_the_worker": {"execution_timeout": timedelta(seconds=15), "deferrable": False},
}

with DAG("answers_and_tells", start_date=START, schedule=None):
    StreamPipelineOperator(
        task_id="run", entry="/pipelines/answers.py", home="{{ dag_run.conf['home'] }}", outlets=[AssetAlias("tables")]
    )

with DAG("slow_deferred", start_date=START, schedule=None, max_active_runs=4):
    StreamPipelineOperator(
        task_id="run",
        entry="/pipelines/slow.py",
        home="{{ dag_run.conf['home'] }}",
        poll_interval_s=0.5,
        max_poll_interval_s=1.0,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )

for kind in ("deferred", "in_the_worker"):
    with DAG(f"small_{kind}", start_date=START, schedule=None):
        StreamPipelineOperator(
            task_id="run",
            entry=str(Path(__file__).parents[2] / "support/small_pipeline.py"),
            home="{{ dag_run.conf['home'] }}",
            parameters={"events": "{{ dag_run.conf['events'] }}", "warehouse": "{{ dag_run.conf['warehouse'] }}"},
            deferrable=kind == "deferred",
            retries=2,
            retry_delay=timedelta(seconds=1),
        )

for kind in ("deferred", "in_the_worker"):
    with DAG(f"beaten_{kind}", start_date=START, schedule=None):
        StreamPipelineOperator(
            task_id="run",
            entry="/pipelines/beaten.py",
            home="{{ dag_run.conf['home'] }}",
            deferrable=kind == "deferred",
            poll_interval_s=0.5,
            max_poll_interval_s=1.0,
            retries=1,
            retry_delay=timedelta(hours=1),
            retry_policy=PipelineRetryPolicy(),
        )


def tell_of_a_failure(context: Any) -> None:
    """Logs the notification about a failure in the task's log."""
    logging.getLogger("airflow.task").warning("somebody is told of %s", type(context["exception"]).__name__)


for name, limits in {
    "senses": {},
    "senses_in_vain": {"timeout": 5.0},
    "senses_softly": {"timeout": 5.0, "soft_fail": True},
}.items():
    with DAG(name, start_date=START, schedule=None, max_active_runs=4):
        CheckpointSensor(
            task_id="run",
            home="{{ dag_run.conf['home'] }}",
            poll_interval_s=0.5,
            retries=2,
            retry_delay=timedelta(seconds=1),
            **cast(dict[str, Any], limits),
        )

with DAG("alerts", start_date=START, schedule=None):
    CheckpointSensor(
        task_id="run",
        home="{{ dag_run.conf['home'] }}",
        max_age=timedelta(minutes=10),
        timeout=3.0,
        poll_interval_s=0.5,
        on_failure_callback=tell_of_a_failure,
    )

WATCHER = AssetWatcher(name="watched", trigger=PublicationTrigger(home="watched", poll_interval_s=0.5, max_poll_interval_s=1.0))

with DAG("watching", start_date=START, schedule=[Asset("watched_public", watchers=[WATCHER])]):
    EmptyOperator(task_id="run")

HOURS_PUBLIC = Asset(
    "hours_public",
    watchers=[AssetWatcher(name="hours", trigger=PublicationTrigger(home="hours", poll_interval_s=0.5, max_poll_interval_s=1.0))],
)
HOURS = Asset("finished_hours")

with DAG("finishes_hours", start_date=START, schedule=[HOURS_PUBLIC], max_active_runs=1):
    EmitFinishedPartitionsOperator(
        task_id="run", home="hours", sink="hourly", outlets=[HOURS], retries=2, retry_delay=timedelta(seconds=1)
    )

with DAG("runs_once_an_hour", start_date=START, schedule=PartitionedAssetTimetable(assets=HOURS), catchup=False):
    EmptyOperator(task_id="run")


for kind in ("deferred", "in_the_worker"):
    with DAG(f"live_{kind}", start_date=START, schedule=None, max_active_runs=4):
        StreamPipelineOperator(
            task_id="run",
            entry="/pipelines/live_waits.py",
            home="{{ dag_run.conf['home'] }}",
            deferrable=kind == "deferred",
            poll_interval_s=0.5,
            max_poll_interval_s=1.0,
            retries=2,
            retry_delay=timedelta(seconds=1),
            on_failure_callback=tell_of_a_failure,
        )

with DAG("left_at_work", start_date=START, schedule=None, max_active_runs=4):
    StreamPipelineOperator(
        task_id="run",
        entry="/pipelines/live_waits.py",
        home="{{ dag_run.conf['home'] }}",
        wait_for="running",
        poll_interval_s=0.5,
    )


def goes_on_until_it_is_asked_to_end(context: Any) -> None:
    """Runs long, like a callback that waits for a service. Notes in the home that Airflow has sent the signal."""
    before = signal.getsignal(signal.SIGTERM)

    def note(number: int, frame: Any) -> None:
        local_path(StreamPipelineHook().files(context["dag_run"].conf["home"]), "asked_to_end").touch()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, note)
    time.sleep(120.0)


with DAG("left_by_a_slow_process", start_date=START, schedule=None):
    StreamPipelineOperator(
        task_id="run",
        entry="/pipelines/live_waits.py",
        home="{{ dag_run.conf['home'] }}",
        wait_for="submitted",
        on_success_callback=goes_on_until_it_is_asked_to_end,
    )

with DAG("real_stream", start_date=START, schedule=None):
    StreamPipelineOperator(
        task_id="run",
        entry=str(Path(__file__).parents[2] / "support/live_pipeline.py"),
        home="{{ dag_run.conf['home'] }}",
        parameters={"events": "{{ dag_run.conf['events'] }}", "warehouse": "{{ dag_run.conf['warehouse'] }}"},
        poll_interval_s=0.5,
        max_poll_interval_s=1.0,
        retries=2,
        retry_delay=timedelta(seconds=1),
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
