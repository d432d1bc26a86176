"""The cost of a batch that does not depend on its rows."""

from typing import Any

import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from tests.spark.conftest import Site

pytestmark = pytest.mark.spark


def test_a_run_raises_no_java_exception(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark converts each Java exception in nearly a tenth of a second, even one that only marks the end of a list."""
    found: list[str] = []
    convert = captured.convert_exception

    def counted(error: Any) -> Any:
        found.append(str(error.toString()))
        return convert(error)

    source = str(site.home.parent / "source")
    site.spark.range(4).repartition(2).write.format("delta").save(source)
    pipeline = Pipeline("quiet")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(numbers: DataFrame) -> DataFrame:
        return numbers

    monkeypatch.setattr(captured, "convert_exception", counted)
    site.run(pipeline)
    assert found == []
