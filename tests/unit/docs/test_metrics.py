"""The reference of metrics and the dashboard match the table of metrics."""

import json
import re

import pytest

from spark_jobs.control.pipeline_metrics import METRICS, Metric
from tests.support.dashboard import FILE, dashboard, query
from tests.support.metrics_page import PAGE, made

_SUFFIXES = {"ms": "_milliseconds", "By": "_bytes", "{record}/s": "_per_second"}
"""The suffixes that Prometheus adds by unit. A unit in braces is a remark, which adds nothing."""


def test_the_page_has_the_table_of_metrics() -> None:
    assert PAGE.read_text() == made(PAGE.read_text()), "python -m tests.support.metrics_page"


def test_the_dashboard_is_generated_from_the_table_of_metrics() -> None:
    assert FILE.read_text() == dashboard(), "python -m tests.support.dashboard"


def test_the_dashboard_has_one_panel_for_each_metric_and_no_two_panels_overlap() -> None:
    panels = [panel for panel in json.loads(dashboard())["panels"] if panel["type"] == "timeseries"]
    assert [panel["targets"][0]["expr"] for panel in panels] == [query(metric) for metric in METRICS]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_query_of_the_dashboard_finds_the_metrics_of_drivers_and_of_airflow_and_no_others(metric: Metric) -> None:
    found = re.search('__name__=~"(.*?)"', query(metric))
    assert found is not None
    for exporter, sends_unit in (("stream_pipeline", True), ("airflow_stream_pipeline", False)):
        pattern = found[1].replace("${exporter}", exporter)

        def name_of(each: Metric, exporter: str = exporter, sends_unit: bool = sends_unit) -> str:
            return f"{exporter}_{each.name}{_SUFFIXES.get(each.unit.value, '') if sends_unit else ''}"

        assert [each.name for each in METRICS if re.fullmatch(pattern, name_of(each))] == [metric.name]
