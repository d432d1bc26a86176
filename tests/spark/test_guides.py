"""The pipelines of the guides run on rows, and so does the test in the guide."""

import re
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.api.load import load_pipeline
from spark_jobs.testing import run_pipeline
from tests.spark.rows import public, public_count
from tests.support.pages import ROOT, files

pytestmark = pytest.mark.spark

GUIDES = ROOT / "docs/how-to"
SHOP = "id long, kind string, customer string, total double, city string, changed_at long"
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


def test_the_pipeline_of_the_guide_counts_clicks_by_session(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of("run-every-day.md", "sessions.py", tmp_path)
    times = [MONDAY, MONDAY + timedelta(minutes=20), MONDAY + timedelta(hours=2)]
    rows = [{"user": "u", "clicked_at": time} for time in times]
    found = run_pipeline(pipeline, {"clicks": rows}, params={"clicks": "-", "warehouse": "-"}, spark=spark)["sessions"]
    assert sorted((row.began_at, row.clicks) for row in found) == [(times[0], 2), (times[2], 1)]


def test_a_secret_parameter_comes_from_the_environment(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_DATABASE_PASSWORD", "secret")
    pipeline = pipeline_of("parameters-and-secrets.md", "priced_orders.py", tmp_path)
    inputs = {"orders": [{"article": "pen", "pieces": 2}], "prices": [{"article": "pen", "price": 1.5}]}
    found = run_pipeline(pipeline, inputs, params={"orders": "-", "warehouse": "-"}, spark=spark)["priced_orders"]
    assert [(row.article, row.pieces, row.price) for row in found] == [("pen", 2, 1.5)]


def test_a_job_that_is_moved_as_in_the_guide_goes_on_where_it_has_stopped(spark: SparkSession, tmp_path: Path) -> None:
    job = re.sub(r'"(data|warehouse|checkpoints)/', rf'"{tmp_path}/\1/', files(GUIDES / "from-writestream.md")["old_job.py"])
    pipeline = pipeline_of("from-writestream.md", "shop.py", tmp_path)
    orders, refunds, customers = (tmp_path / "warehouse" / name for name in ("orders", "refunds", "customers"))
    old = [(1, "order", "c", 2.5, None, 1), (2, "refund", "c", 1.0, None, 2), (3, "customer_moved", "c", 0.0, "Bonn", 3)]
    spark.createDataFrame(old, SHOP).write.format("delta").save(f"{tmp_path}/data/events")
    exec(compile(job, "old_job.py", "exec"), {})
    assert [public_count(table) for table in (orders, refunds)] == [1, 1]
    new = [
        *[(4, "order", "d", 4.0, None, 4), (5, "order", "d", 5.0, None, 5), (6, "visit", "d", 0.0, None, 6)],
        *[(7, "customer_moved", "d", 0.0, "Kiel", 9), (8, "customer_moved", "d", 0.0, "Jena", 8)],
        *[(9, "customer_moved", "e", 0.0, "Ulm", 9), (10, "customer_left", "e", 0.0, None, 10)],
    ]
    spark.createDataFrame(new, SHOP).write.format("delta").mode("append").save(f"{tmp_path}/data/events")
    parameters = {"events": f"{tmp_path}/data/events", "warehouse": f"{tmp_path}/warehouse"}
    adopt = {"events": f"{tmp_path}/checkpoints/shop"}
    pipeline.run(spark=spark, home=tmp_path / "home", params=parameters, adopt_offsets=adopt)
    assert public(orders) == Counter([(1, "c", 2.5), (4, "d", 4.0), (5, "d", 5.0)])
    assert public(refunds) == Counter([(2, 1.0)])
    assert public(customers, ["customer", "city"]) == Counter([("d", "Kiel")])
    assert public(tmp_path / "warehouse" / "first_orders", ["customer", "id"]) == Counter([("d", 4)])


def test_the_table_of_the_guide_has_the_last_change_of_each_customer(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of("sinks.md", "customers.py", tmp_path)

    def change(customer: str, city: str, operation: str, hours: int) -> dict[str, Any]:
        return {"customer": customer, "city": city, "operation": operation, "changed_at": MONDAY + timedelta(hours=hours)}

    changes = [
        change("ann", "Bern", "move", 2),
        change("ann", "Basel", "move", 1),
        change("bob", "Bern", "delete", 2),
        change("bob", "Bern", "move", 1),
    ]
    found = run_pipeline(pipeline, {"changes": changes}, params={"changes": "-", "warehouse": "-"}, spark=spark)
    assert [(row.customer, row.city) for row in found["customers"]] == [("ann", "Bern")]
    assert {row.city: row["count"] for row in found["customers_by_city"]} == {"Bern": 3, "Basel": 1}


def test_the_history_of_the_guide_is_the_table_that_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of("keep-a-history.md", "customer_history.py", tmp_path)
    changes = [
        {"customer": customer, "city": city, "operation": operation, "changed_at": MONDAY + timedelta(hours=hours)}
        for customer, city, operation, hours in [
            ("ann", "Bern", "move", 2),
            ("bob", "Bern", "delete", 2),
            ("ann", "Basel", "move", 0),
            ("bob", "Bern", "move", 1),
        ]
    ]
    found = run_pipeline(pipeline, {"changes": changes}, params={"changes": "-", "warehouse": "-"}, spark=spark)
    versions = [(row.customer, row.city, row.valid_from, row.valid_to, row.is_current) for row in found["customer_history"]]
    nine, ten, eleven = (MONDAY + timedelta(hours=hours) for hours in range(3))
    assert sorted(versions, key=str) == [
        ("ann", "Basel", nine, eleven, False),
        ("ann", "Bern", eleven, None, True),
        ("bob", "Bern", ten, eleven, False),
    ]


# test_the_history_of_the_guide_is_the_table_that_it_shows runs by day.
@pytest.mark.nightly
def test_the_history_of_a_tables_changes_has_each_version_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of("keep-a-history.md", "article_history.py", tmp_path)
    articles = f"delta.`{tmp_path / 'articles'}`"
    properties = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    spark.sql(f"CREATE TABLE {articles} (id LONG, price LONG) USING delta {properties}")
    for statement in (
        "INSERT INTO {} VALUES (1, 10), (2, 20)",
        "UPDATE {} SET price = 11 WHERE id = 1",
        "DELETE FROM {} WHERE id = 2",
    ):
        spark.sql(statement.format(articles))
    parameters = {"articles": str(tmp_path / "articles"), "warehouse": str(tmp_path / "warehouse")}
    pipeline.run(spark=spark, home=tmp_path / "home", params=parameters)
    # the feed of a first start has the rows of the table
    spark.sql(f"UPDATE {articles} SET price = 12 WHERE id = 1")
    pipeline.run(spark=spark, home=tmp_path / "home", params=parameters)
    found = public(tmp_path / "warehouse" / "articles", ["id", "price", "is_current"])
    assert found == Counter([(1, 11, False), (1, 12, True)])
