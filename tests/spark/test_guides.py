"""The pipelines of the guides, run on rows, and the test that the guide shows."""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.api.load import load_pipeline
from spark_jobs.testing import run_pipeline
from tests.support.pages import ROOT, files

pytestmark = pytest.mark.spark

GUIDES = ROOT / "docs/how-to"
MONDAY = datetime(2026, 3, 2, 9)  # noqa: DTZ001  # as Spark takes and gives timestamps


def pipeline_of(page: str, title: str, folder: Path) -> Pipeline:
    (folder / title).write_text(files(GUIDES / page)[title])
    return load_pipeline(str(folder / title))


def test_the_test_that_the_guide_shows_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = files(GUIDES / "write-a-pipeline.md")
    for title in ("orders.py", "test_orders.py"):
        (tmp_path / title).write_text(shown[title])
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    try:
        namespace: dict[str, Any] = {}
        exec(compile(shown["test_orders.py"], "test_orders.py", "exec"), namespace)
        (test,) = (value for name, value in namespace.items() if name.startswith("test_"))
        test()
    finally:
        for name in {"orders"} - before:
            sys.modules.pop(name, None)


def test_sessions_are_what_the_guide_says(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of("run-every-day.md", "sessions.py", tmp_path)
    times = [MONDAY, MONDAY + timedelta(minutes=20), MONDAY + timedelta(hours=2)]
    rows = [{"user": "u", "clicked_at": time} for time in times]
    found = run_pipeline(pipeline, {"clicks": rows}, params={"clicks": "-", "warehouse": "-"}, spark=spark)["sessions"]
    assert sorted((row.began_at, row.clicks) for row in found) == [(times[0], 2), (times[2], 1)]


def test_a_secret_parameter_comes_from_the_environment(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_DATABASE_PASSWORD", "secret")
    pipeline = pipeline_of("write-a-pipeline.md", "priced_orders.py", tmp_path)
    inputs = {"orders": [{"article": "pen", "pieces": 2}], "prices": [{"article": "pen", "price": 1.5}]}
    found = run_pipeline(pipeline, inputs, params={"orders": "-", "warehouse": "-"}, spark=spark)["priced_orders"]
    assert [(row.article, row.pieces, row.price) for row in found] == [("pen", 2, 1.5)]
