"""Alternatives for features that some versions of Airflow lack."""

import sys
from types import ModuleType
from typing import Any

import pytest

from airflow_provider.control_dag import control_dag
from airflow_provider.version_compat import HAS_RETRY_POLICIES, emit_gauge, set_up_metrics

pytestmark = [pytest.mark.every_version, pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]


def test_the_installed_airflow_accepts_a_gauge() -> None:
    set_up_metrics()
    emit_gauge("stream_pipeline.records", 1.0, {})


class Backend:
    """The metrics interface of Airflow below 3.3."""

    factory: Any = None
    seen: tuple[str, float, dict[str, str]] | None = None

    def initialize(self, *, factory: Any) -> None:
        self.factory = factory

    def gauge(self, name: str, value: float, *, tags: dict[str, str]) -> None:
        self.seen = name, value, tags


def module(name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


@pytest.mark.parametrize("sets_itself_up", [False, True], ids=["Airflow 3.2", "Airflow 3.1"])
def test_a_gauge_is_emitted_by_an_older_airflow(monkeypatch: pytest.MonkeyPatch, *, sets_itself_up: bool) -> None:
    backend, place = Backend(), "airflow.sdk.observability"
    if sets_itself_up:
        monkeypatch.setitem(sys.modules, place, None)
        monkeypatch.setitem(sys.modules, "airflow.stats", module("airflow.stats", Stats=backend))
    else:
        stats, utils = module("stats", Stats=backend), module("stats_utils", get_stats_factory=lambda stats: "factory")
        metrics = module("metrics", stats_utils=utils)
        monkeypatch.setitem(sys.modules, place, module(place, stats=stats, metrics=metrics))
        monkeypatch.setitem(sys.modules, f"{place}.metrics", metrics)
    set_up_metrics()
    emit_gauge("stream_pipeline.records", 2.0, {"stage": "hourly"})
    assert backend.seen == ("stream_pipeline.records", 2.0, {"stage": "hourly"})
    assert backend.factory == (None if sets_itself_up else "factory")


def test_a_control_dag_has_a_retry_policy_if_airflow_supports_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    task = control_dag("with_what_there_is", home="orders").get_task("savepoint")
    assert (getattr(task, "retry_policy", None) is not None) is HAS_RETRY_POLICIES
    monkeypatch.setattr("airflow_provider.control_dag.HAS_RETRY_POLICIES", False)
    older = control_dag("without", home="orders").get_task("savepoint")
    assert (getattr(older, "retry_policy", None), older.retries) == (None, 2)
