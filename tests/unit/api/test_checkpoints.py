import dataclasses
from typing import Any

import pytest

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpointing import SETTINGS, Checkpointing, CheckpointOverrides
from spark_jobs.protocol.errors import InvalidPipelineError


def copying(**options: Any) -> Pipeline:
    pipeline = Pipeline("flights", **options)
    pipeline.source(bounded=False, name="events")(lambda spark: spark)
    pipeline.stage(name="copied", sink=DeltaSink("/copied"))(lambda events: events)
    return pipeline


def test_the_defaults_equal_those_of_flink_except_interval_failures_and_aligned_timeout() -> None:
    assert copying().graph().checkpointing == Checkpointing(
        interval_ms=60_000,
        timeout_ms=600_000,
        min_pause_ms=0,
        tolerable_failures=None,
        retained=1,
        unaligned=False,
        aligned_timeout_ms=None,
        max_in_flight_bytes=None,
    )


def test_every_checkpoint_setting_has_a_stored_field() -> None:
    assert tuple(field.name for field in dataclasses.fields(CheckpointSettings)) == SETTINGS


def test_a_pipeline_can_declare_its_own_settings() -> None:
    found = copying(checkpoint=CheckpointSettings(interval="10 seconds", retained=3)).graph().checkpointing
    assert (found.interval_ms, found.retained, found.timeout_ms) == (10_000, 3, 600_000)


def test_a_bad_setting_is_refused_when_the_pipeline_is_declared() -> None:
    with pytest.raises(InvalidPipelineError, match="Pipeline 'flights': checkpoint retained=0 is not a whole number above 0"):
        Pipeline("flights", checkpoint=CheckpointSettings(retained=0))


@pytest.mark.parametrize("wrong", [None, {"interval": "1 minute"}, "1 minute"])
def test_a_value_that_is_not_checkpoint_settings_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="checkpoint=.* is not a CheckpointSettings"):
        Pipeline("flights", checkpoint=wrong)


def test_a_run_overrides_single_settings_of_its_pipeline() -> None:
    pipeline = copying(checkpoint=CheckpointSettings(interval="10 seconds", retained=3))
    found = pipeline.graph(checkpoint=CheckpointOverrides(interval_ms=5_000)).checkpointing
    assert (found.interval_ms, found.retained) == (5_000, 3)
    assert pipeline.graph().checkpointing.interval_ms == 10_000


def test_a_run_with_contradictory_checkpoint_settings_is_refused() -> None:
    pipeline = copying(checkpoint=CheckpointSettings(aligned_timeout="1 minute"))
    with pytest.raises(
        InvalidPipelineError, match="Pipeline 'flights': checkpoint aligned_timeout .* is not shorter than timeout"
    ):
        pipeline.graph(checkpoint=CheckpointOverrides(timeout_ms=60_000))


def test_the_checkpoint_interval_may_change_between_runs() -> None:
    often = copying(checkpoint=CheckpointSettings(interval="1 second")).graph()
    assert often.fingerprint() == copying().graph().fingerprint()


def test_a_rewired_copy_keeps_its_checkpoint_settings() -> None:
    pipeline = copying(checkpoint=CheckpointSettings(retained=7))
    assert pipeline.rewired({}, "/tables").graph().checkpointing.retained == 7
