"""A pipeline makes a fresh start in a table with other writers. It keeps their rows, or refuses to start."""

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.support.table_features import READ_BY_ICEBERG

pytestmark = pytest.mark.spark

SINKS = {
    "append": {},
    "append by Spark": {"table_properties": READ_BY_ICEBERG},
    "append that only Spark can replace": {"table_properties": {"delta.enableRowTracking": "true"}},
    "upsert": {"mode": "upsert", "keys": ["n"]},
    "insert": {"mode": "insert", "keys": ["n"]},
    "complete": {"mode": "complete"},
}
AT_NIGHT = ("append that only Spark can replace", "insert")


def _pipeline(site: Site, **sink: Any) -> Pipeline:
    pipeline = Pipeline("mine", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "in"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "shared"), **sink))
    def mine(rows: DataFrame) -> DataFrame:
        return rows.groupBy("n").count().select("n") if sink.get("mode") == "complete" else rows

    return pipeline


def _table(site: Site) -> list[int]:
    return sorted(row["n"] for row in site.spark.read.format("delta").load(str(site.tables / "shared")).collect())


# Inserts are refused as upserts are, and what Spark replaces is refused whichever property it has.
@pytest.mark.parametrize(
    "sink", [pytest.param(SINKS[name], id=name, marks=pytest.mark.nightly if name in AT_NIGHT else []) for name in SINKS]
)
def test_rows_of_other_writers_are_not_replaced(site: Site, sink: dict[str, Any]) -> None:
    table = f"delta.`{site.tables / 'shared'}`"
    inputs.append(site.home.parent / "in", pd.DataFrame({"n": [10, 11]}))
    pipeline = _pipeline(site, **sink)
    site.run(pipeline)
    site.run(pipeline, fresh=True, on_rewind="replace")
    assert _table(site) == [10, 11], "all rows are the pipeline's own"
    site.spark.sql(f"INSERT INTO {table} VALUES (1), (2), (3)")
    before = sorted(site.home.glob("*/*"))
    with pytest.raises(UnsupportedTableError, match="3 rows that this pipeline has not published"):
        site.run(pipeline, fresh=True, on_rewind="replace")
    assert _table(site) == [1, 2, 3, 10, 11]
    new = {path.parent.name for path in set(site.home.glob("*/*")) - set(before)}
    assert new <= {"requests", "responses", "runs"}, "nothing but the request, its entry and its answer was written"
    site.spark.sql(f"DELETE FROM {table}")
    site.run(pipeline, fresh=True, on_rewind="replace")
    assert _table(site) == [10, 11]


def test_the_first_publication_of_a_complete_result_does_not_replace_rows_of_other_writers(site: Site) -> None:
    """Later publications of a complete result replace all rows, as usual."""
    table, home = f"delta.`{site.tables / 'shared'}`", open_files(str(site.home))
    inputs.append(site.home.parent / "in", pd.DataFrame({"n": [10, 11]}))
    pipeline = _pipeline(site, mode="complete", publish="external")
    site.run(pipeline)
    publish(home)
    site.run(pipeline, fresh=True, on_rewind="replace")
    site.spark.sql(f"INSERT INTO {table} VALUES (1)")
    with pytest.raises(UnsupportedTableError, match="1 rows that this pipeline has not published"):
        publish(home)
    assert _table(site) == [1, 10, 11]
    inputs.append(site.home.parent / "in", pd.DataFrame({"n": [12]}))
    site.run(pipeline)
    with pytest.raises(UnsupportedTableError, match="1 rows that this pipeline has not published"):
        publish(home)
    site.spark.sql(f"DELETE FROM {table} WHERE n = 1")
    publish(home)
    assert _table(site) == [10, 11, 12]
    site.spark.sql(f"INSERT INTO {table} VALUES (1)")
    inputs.append(site.home.parent / "in", pd.DataFrame({"n": [13]}))
    site.run(pipeline)
    publish(home)
    assert _table(site) == [10, 11, 12, 13]
