from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.refusals import Place
from spark_jobs.api.settings import check_settings, check_stage_settings
from spark_jobs.protocol.errors import InvalidPipelineError

PLACE = Place("flights")

FIXED = [
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.offsetLog.formatVersion",
    "spark.sql.streaming.stateStore.checkpointFormatVersion",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
    "spark.sql.streaming.stopActiveRunOnRestart",
    "spark.sql.streaming.unsupportedOperationCheck",
]


@pytest.mark.parametrize("key", FIXED)
def test_a_setting_that_a_guarantee_needs_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"{key} cannot be set: .* Remove it"):
        check_settings(PLACE, {"spark.sql.ansi.enabled": "true", key: "1"})


@pytest.mark.parametrize("key", FIXED)
def test_a_setting_that_a_guarantee_needs_is_refused_on_a_stage_too(key: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"{key} cannot be set"):
        check_stage_settings(PLACE, {key: "1"})


def test_a_pipeline_keeps_its_other_settings() -> None:
    given = {"spark.sql.shuffle.partitions": "4", "spark.executor.memory": "2g"}
    pipeline = Pipeline("flights", conf=given)
    given.clear()
    assert pipeline.conf == {"spark.sql.shuffle.partitions": "4", "spark.executor.memory": "2g"}


@pytest.mark.parametrize("conf", [{"spark.sql.shuffle.partitions": 4}, {"spark.ui.enabled": False}, {3: "spark"}])
def test_a_setting_that_is_not_a_text_is_refused(conf: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a string"):
        Pipeline("flights", conf=conf)


def test_a_setting_that_is_not_of_spark_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match=r"'sql\.ansi\.enabled' is not a Spark setting"):
        Pipeline("flights", conf={"sql.ansi.enabled": "true"})


@pytest.mark.parametrize(
    "key", ["spark.sql.shuffle.partitions", "spark.executor.memory", "spark.sql.extensions", "spark.sql.catalog.x"]
)
def test_a_setting_of_the_whole_application_is_refused_on_a_stage(key: str) -> None:
    pipeline = Pipeline("flights")
    with pytest.raises(InvalidPipelineError, match=rf"stage 'hourly': {key} is a setting of the whole application"):

        @pipeline.stage(sink=DeltaSink("/hourly"), conf={key: "4"})
        def hourly(departures: Any) -> Any: ...


def test_a_stage_may_have_settings_of_its_own() -> None:
    assert check_stage_settings(PLACE, {"spark.sql.ansi.enabled": "true"}) == {"spark.sql.ansi.enabled": "true"}
