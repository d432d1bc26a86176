"""How a stage is built, without Spark."""

import pytest
from pyspark.sql.types import StructType

from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.runtime.stages.build import polling_delay


def stream(path: str | None) -> Leaf:
    return Leaf(1, "StreamingRelation", "delta", {} if path is None else {"path": path}, StructType())


@pytest.mark.parametrize(
    ("paths", "delay"),
    [
        (["/data/events"], "100ms"),
        (["file:///data/events", None], "100ms"),
        (["s3a://lake/events"], "1s"),
        (["/data/events", "hdfs://name-node:8020/events"], "1s"),
        (["abfss://lake@account.dfs.core.windows.net/events"], "1s"),
    ],
)
def test_an_idle_stage_checks_for_rows_in_a_store_less_often(paths: list[str | None], delay: str) -> None:
    assert polling_delay(map(stream, paths)) == delay
