"""Makes the Grafana dashboard from the table of metrics: ``python -m tests.support.dashboard``."""

import json
from typing import Any

from spark_jobs.control.pipeline_metrics import METRICS, PREFIX, Metric, Scope, Unit
from tests.support.pages import ROOT

FILE = ROOT / "docs/reference/grafana-dashboard.json"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SUFFIXES = {Unit.MILLISECONDS: "_milliseconds", Unit.BYTES: "_bytes", Unit.RECORDS_PER_SECOND: "_per_second"}
"""The suffixes that Prometheus adds to a gauge whose exporter sends a unit. Airflow sends none."""
_SHOWN_AS = {Unit.MILLISECONDS: "ms", Unit.BYTES: "bytes", Unit.RECORDS_PER_SECOND: "cps"}
"""The units in which Grafana shows values; others are plain numbers."""
_TITLES = {Scope.PIPELINE: "Pipelines", Scope.STAGE: "Stages", Scope.INPUT: "Inputs"}
_LEGENDS = {
    Scope.PIPELINE: "{{pipeline}}",
    Scope.STAGE: "{{pipeline}} {{stage}}",
    Scope.INPUT: "{{pipeline}} {{stage}} {{input}}",
}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


def dashboard() -> str:
    """Returns the dashboard as JSON, with a panel for each metric."""
    content = {
        "uid": "stream-pipelines",
        "title": "Stream pipelines",
        "tags": ["spark", "airflow"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }
    return json.dumps(content, indent=2) + "\n"


def query(metric: Metric) -> str:
    """Returns the query for a metric, from drivers or from Airflow."""
    suffix = _SUFFIXES.get(metric.unit)
    name = f"${{exporter}}_{metric.name}" + (f"({suffix})?" if suffix else "")
    return f'{{__name__=~"{name}", pipeline=~"$pipeline", home=~"$home"}}'


def _variables() -> list[dict[str, Any]]:
    drivers = {"text": "drivers", "value": PREFIX, "selected": True}
    airflow = {"text": "Airflow", "value": f"airflow_{PREFIX}", "selected": False}
    exporter = {
        "name": "exporter",
        "label": "from",
        "type": "custom",
        "query": f"drivers : {PREFIX},Airflow : airflow_{PREFIX}",
        "options": [drivers, airflow],
        "current": drivers,
    }
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return [datasource, exporter, _label("pipeline", ""), _label("home", ', pipeline=~"$pipeline"')]


def _label(name: str, among: str) -> dict[str, Any]:
    """Returns a variable for the values of a tag."""
    found = f'label_values({{__name__="${{exporter}}_attempt"{among}}}, {name})'
    values = {"query": {"query": found, "refId": name}, "datasource": _DATASOURCE, "refresh": 2}
    everything = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return {"name": name, "type": "query"} | values | everything


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for scope in Scope:
        panels.append({"type": "row", "title": _TITLES[scope], "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        y += 1
        metrics = [metric for metric in METRICS if metric.scope is scope]
        for number, metric in enumerate(metrics):
            at = {"x": number % _COLUMNS * _WIDTH, "y": y + number // _COLUMNS * _HEIGHT}
            panels.append(_panel(metric, {"h": _HEIGHT, "w": _WIDTH} | at))
        y += -(-len(metrics) // _COLUMNS) * _HEIGHT
    return [{"id": number} | panel for number, panel in enumerate(panels, 1)]


def _panel(metric: Metric, place: dict[str, int]) -> dict[str, Any]:
    target = {"refId": "A", "datasource": _DATASOURCE, "expr": query(metric), "legendFormat": _LEGENDS[metric.scope]}
    return {
        "type": "timeseries",
        "title": metric.name.replace("_", " "),
        "description": metric.description,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _SHOWN_AS.get(metric.unit, "short"), "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [target],
    }


if __name__ == "__main__":
    FILE.write_text(dashboard())
