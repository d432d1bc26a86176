"""A driver that runs for months starts many queries. None of them stays in memory after its end."""

import gc
import time
from typing import Any
from weakref import ref

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.runtime.stages.built_stage import BuiltStage
from spark_jobs.runtime.stages.staging import StageWriter
from tests.spark.conftest import SharedInputs, Site

pytestmark = pytest.mark.spark

_PATIENCE_S = 60.0


def test_an_ended_query_is_freed_in_python_and_in_java(site: Site, shared: SharedInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ref[StageWriter]] = []

    class Watched(StageWriter):
        def __init__(self, run: BuiltStage) -> None:
            super().__init__(run)
            begun.append(ref(self))

    monkeypatch.setattr("spark_jobs.runtime.stages.stage_query.StageWriter", Watched)
    pipeline = Pipeline("freed")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(shared.events))

    @pipeline.stage(sink=DeltaSink(site.table("copied")))
    def copied(events: DataFrame) -> DataFrame:
        return events

    site.run(pipeline)
    assert begun
    jvm: Any = site.spark._jvm
    deadline_s = time.monotonic() + _PATIENCE_S
    while any(writer() for writer in begun):
        assert time.monotonic() < deadline_s, "Java still has the query, which has the writer"
        gc.collect()
        jvm.System.gc()
        time.sleep(0.2)
