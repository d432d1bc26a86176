"""Crashes of a pipeline that has changed."""

from typing import Any

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.steps import Step
from tests.spark.rows import public_count
from tests.support import small_pipeline
from tests.support.run_site import RunSite
from tests.support.small_pipeline import ROWS_A_DAY, Params, answer

OF_THE_CHANGE = (
    Step.SAVEPOINT_BEGIN, Step.SAVEPOINT_FILES, Step.SAVEPOINT_CREATE, Step.SAVEPOINT_END, Step.ATTEMPT_CREATE, Step.INCARNATION_CLOSE,
    Step.ROUND_CREATE, Step.SAVEPOINT_IMPORT, Step.MANIFEST_CREATE, Step.RESTORE_END,
)  # fmt: skip
"""The steps of such a start, in order, until the pipeline goes on from the checkpoint made of the savepoint."""


def changed() -> Pipeline:
    """Returns the small pipeline with one more stage, which reads every event."""
    made = Pipeline("small", params=Params)
    declared: dict[str, Any] = {"event_time": "at", "watermark_delay": "1 hour", "hold_watermark": True}
    made.source(bounded=True, **declared)(small_pipeline.events)
    made.stage(small_pipeline.known)
    made.stage(sink=DeltaSink("{warehouse}/hourly", partition_by=["origin"]))(small_pipeline.hourly)
    made.stage(sink=DeltaSink("{warehouse}/daily"))(small_pipeline.daily)
    made.stage(sink=DeltaSink("{warehouse}/copied"), name="copied")(lambda events: events)
    return made


def assert_whole(site: RunSite) -> None:
    """Checks that every row of both days is public once, also the windows that were open during the change of the pipeline."""
    assert site.public() == answer(range(2))
    assert public_count(site.table("copied")) == 2 * ROWS_A_DAY
