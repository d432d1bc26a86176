"""Emits the metrics of supervised pipelines through Airflow's own metrics: StatsD, Datadog or OpenTelemetry, as ``[metrics]`` says.

:mod:`spark_jobs.control.pipeline_metrics` has the table of metrics. Airflow does not set up metrics in the triggerer's process, and without
that a gauge is lost. So this module sets them up in the same way as Airflow does in a task's process.
"""

import re
import time
from functools import cache

from airflow_provider.tasks.identity import TaskIdentity
from airflow_provider.version_compat import conf, emit_gauge, set_up_metrics
from spark_jobs.control.pipeline_metrics import METRICS, PREFIX, Metric, MetricsReader, Value
from spark_jobs.protocol.documents import Status
from spark_jobs.storage.files import Files

INTERVAL_S = 10.0
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]")
"""Characters for which Airflow refuses the name of a metric, or writes an underscore."""


class PipelineMetrics:
    """Emits the gauges of one pipeline, every ten seconds at most.

    Args:
        files: The home.
        task: The task that supervises the pipeline; None: no gauge is emitted, as in a test run of a DAG.
    """

    def __init__(self, files: Files, task: TaskIdentity | None) -> None:
        self._reader, self._task = MetricsReader(files), task
        self._due_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Returns True if :meth:`emit` has something to emit at ``now_s`` on a monotonic clock."""
        return self._task is not None and now_s >= self._due_s and is_on()

    def emit(self, status: Status, now_s: float) -> None:
        """Emits the gauges. It may read the newest manifest, so call it in a thread."""
        assert self._task is not None
        self._due_s = now_s + INTERVAL_S
        facts, tags = self._reader.facts(status, time.time()), self._reader.tags()
        _set_up()
        for metric in METRICS:
            for value in metric.values(facts):
                _emit(metric, value, tags, self._task)


def is_on() -> bool:
    """Returns True if Airflow is configured to emit metrics."""
    return any(conf.getboolean("metrics", name, fallback=False) for name in ("statsd_on", "statsd_datadog_enabled", "otel_on"))


@cache
def _set_up() -> None:
    set_up_metrics()


def _emit(metric: Metric, value: Value, tags: dict[str, str], task: TaskIdentity) -> None:
    """Emits a value with tags. Plain StatsD has no tags, so there the gauge's name contains the DAG, the task and the stage."""
    own = {"dag_id": task.dag_id, "task_id": task.task_id} | value.tags
    if conf.getboolean("metrics", "statsd_on", fallback=False):
        parts = [PREFIX, *(_NOT_IN_NAMES.sub("_", each) for each in own.values()), metric.name]
        emit_gauge(".".join(parts), value.value, {})
    else:
        emit_gauge(metric.full_name, value.value, own | tags)
