"""Emits gauges of supervised pipelines through Airflow's own metrics: StatsD, Datadog or OpenTelemetry, as ``[metrics]`` says.

Airflow does not set up metrics in the triggerer's process, and without that a gauge is lost. So this module sets them up in the same way
as Airflow does in a task's process.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from airflow_provider.tasks.identity import TaskIdentity
from airflow_provider.version_compat import conf, emit_gauge, set_up_metrics
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.protocol.documents import Manifest, StageState, Status
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.storage.files import Files

PREFIX = "stream_pipeline"
INTERVAL_S = 10.0
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]")
"""Characters for which Airflow refuses the name of a metric, or writes an underscore."""


class Gauge(NamedTuple):
    """One value of a gauge."""

    name: str
    value: float
    stage: str | None = None
    source: str | None = None


def gauges(status: Status, head: Manifest | None, now_s: float) -> Iterator[Gauge]:
    """Yields the gauges of a heartbeat and the newest checkpoint.

    Args:
        status: The heartbeat.
        head: The newest checkpoint from which the pipeline can be restored.
        now_s: Seconds since 1970.
    """
    if head is not None:
        yield Gauge("checkpoint_age_s", max(now_s - head.completed_at.timestamp(), 0.0))
        yield Gauge("last_checkpoint_duration_s", max((head.completed_at - head.began_at).total_seconds(), 0.0))
        yield Gauge("last_checkpoint_rows", sum(cut.actions.rows for cut in head.sinks.values()))
        yield Gauge("losses", len(head.losses))
    yield Gauge("blocked_publication_s", 0.0 if status.blocked is None else max(now_s - status.blocked.since.timestamp(), 0.0))
    yield Gauge("failed_stages", sum(stage.state is StageState.FAILED for stage in status.stages.values()))
    yield Gauge("attempt", status.attempt)
    for name, stage in status.stages.items():
        yield Gauge("records", stage.rows_in, name)
        yield Gauge("records_per_s", stage.rows_per_s, name)
        yield Gauge("restarts", stage.restarts, name)
        if stage.watermark_ms:
            yield Gauge("watermark_lag_s", max(now_s - stage.watermark_ms / 1000, 0.0), name)
        for source, lag in stage.lag.items():
            if lag.rows is not None:
                yield Gauge("lag_rows", lag.rows, name, source)
            if lag.size_bytes is not None:
                yield Gauge("lag_size_bytes", lag.size_bytes, name, source)


class PipelineMetrics:
    """Emits the gauges of one pipeline, every ten seconds at most.

    Args:
        files: The home.
        task: The task that supervises the pipeline; None: no gauge is emitted, as in a test run of a DAG.
    """

    def __init__(self, files: Files, task: TaskIdentity | None) -> None:
        self._files, self._task = files, task
        self._due_s = float("-inf")
        self._head: Manifest | None = None

    def is_due(self, now_s: float) -> bool:
        """Returns whether :meth:`emit` has something to emit at ``now_s`` on a monotonic clock."""
        return self._task is not None and now_s >= self._due_s and is_on()

    def emit(self, status: Status, now_s: float) -> None:
        """Emits the gauges. It may read the newest manifest, so call it in a thread."""
        assert self._task is not None
        self._due_s = now_s + INTERVAL_S
        if self._head is None or self._head.checkpoint != status.checkpoint:
            with suppress(StreamPipelineError):  # a gauge must not end the wait; the next look reports the storage's error
                self._head = newest_manifest(self._files)
        _set_up()
        for gauge in gauges(status, self._head, time.time()):
            _emit(gauge, self._task)


def is_on() -> bool:
    """Returns whether Airflow is configured to emit metrics."""
    return any(conf.getboolean("metrics", name, fallback=False) for name in ("statsd_on", "statsd_datadog_enabled", "otel_on"))


@cache
def _set_up() -> None:
    set_up_metrics()


def _emit(gauge: Gauge, task: TaskIdentity) -> None:
    """Emits a gauge with tags. Plain StatsD has no tags, so there the gauge's name contains the DAG, the task and the stage."""
    tags = {"dag_id": task.dag_id, "task_id": task.task_id, "stage": gauge.stage, "source": gauge.source}
    given = {name: value for name, value in tags.items() if value is not None}
    if conf.getboolean("metrics", "statsd_on", fallback=False):
        parts = [PREFIX, *(_NOT_IN_NAMES.sub("_", each) for each in given.values()), gauge.name]
        emit_gauge(".".join(parts), gauge.value, {})
    else:
        emit_gauge(f"{PREFIX}.{gauge.name}", gauge.value, given)
