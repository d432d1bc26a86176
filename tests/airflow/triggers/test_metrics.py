"""The gauges of a supervised pipeline, as Airflow's own metrics emit them."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider.triggers import metrics
from airflow_provider.triggers.metrics import PipelineMetrics
from spark_jobs.control import pipeline_metrics
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import CheckpointId
from tests.airflow.conftest import Homes
from tests.airflow.flights import until
from tests.support.command_line import UsedHome
from tests.support.measured_homes import a_status
from tests.support.run_triggers import event_of, hook, started, trigger
from tests.support.staged_pipeline import HOURLY

__all__ = ["hook"]

TASK: Any = SimpleNamespace(dag_id="flights", run_id="r", task_id="group.run", map_index=-1)


TASK_TAGS = {("dag_id", "flights"), ("task_id", "group.run")}


def tags_of(home: UsedHome) -> tuple[tuple[str, str], ...]:
    """Returns the tags of a gauge of the whole pipeline."""
    return tuple(sorted({*TASK_TAGS, ("home", home.files.url), ("pipeline", "flights")}))


class Recorder:
    """A metrics backend that records gauges."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def gauge(self, name: str, value: float, *, tags: dict[str, str] | None = None, **_: Any) -> None:
        self.seen[name, tuple(sorted((tags or {}).items()))] = value


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Records the metrics of an Airflow whose metrics are on."""
    made = Recorder()
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    monkeypatch.setattr(stats_utils, "get_stats_factory", lambda: lambda: made)
    metrics._set_up.cache_clear()
    yield made
    monkeypatch.undo()  # before Airflow's own backend is restored
    metrics._set_up.cache_clear()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


def test_the_age_gauge_shows_the_age_of_the_newest_manifest_whatever_the_heartbeat_says(
    tmp_path: Path, recorder: Recorder
) -> None:
    home = UsedHome(tmp_path)
    home.begin()
    home.staged.checkpoint({HOURLY: [(1, "a")]})
    emitted = PipelineMetrics(home.files, TASK)
    assert emitted.is_due(0.0)
    emitted.emit(a_status(), 0.0)
    rows = "stream_pipeline.last_checkpoint_records", tags_of(home)
    assert recorder.seen[rows] == 1
    assert (emitted.is_due(9.9), emitted.is_due(10.0)) == (False, True)
    home.staged.checkpoint({HOURLY: [(2, "b"), (3, "c")]})
    emitted.emit(a_status(checkpoint=CheckpointId(2)), 10.0)
    assert recorder.seen[rows] == 2


def test_two_pipelines_have_two_gauge_names_because_plain_statsd_has_no_tags(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    home = UsedHome(tmp_path)
    home.begin()
    PipelineMetrics(home.files, TASK).emit(a_status(), 0.0)
    assert recorder.seen["stream_pipeline.flights.group.run.hourly.num_records_in", ()] == 12
    assert recorder.seen["stream_pipeline.flights.group.run.num_failed_stages", ()] == 1


def test_no_gauge_is_emitted_if_metrics_are_off_or_no_task_supervises(tmp_path: Path, recorder: Recorder) -> None:
    home = UsedHome(tmp_path)
    assert not PipelineMetrics(home.files, None).is_due(0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AIRFLOW__METRICS__OTEL_ON")
        assert not PipelineMetrics(home.files, TASK).is_due(0.0)


def test_a_trigger_emits_the_gauges_while_its_driver_runs(homes: Homes, recorder: Recorder, hook: Any) -> None:
    started(hook)
    waiting = trigger(homes)
    waiting.task_instance = TASK

    def attempts() -> list[float]:
        return [
            value
            for (name, tags), value in recorder.seen.items()
            if name == "stream_pipeline.attempt" and TASK_TAGS.issubset(tags)
        ]

    def let_end_once_emitted() -> None:
        try:
            until(attempts)
        finally:
            (homes.path() / ".go").touch()

    assert "error" not in event_of(waiting, let_end_once_emitted)
    assert attempts() == [1]


def test_a_manifest_that_cannot_be_read_ends_no_wait_and_hides_no_other_gauge(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StorageError("The disk is away.")

    home = UsedHome(tmp_path)
    home.begin()
    monkeypatch.setattr(pipeline_metrics, "newest_manifest", fail)
    PipelineMetrics(home.files, TASK).emit(a_status(), 0.0)
    assert {name for name, _ in recorder.seen} >= {"stream_pipeline.attempt", "stream_pipeline.num_records_in"}
