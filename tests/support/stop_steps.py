"""The durable steps of a stop, for tests that end a process at each of them."""

from spark_jobs.protocol.steps import Step

STOP_STEPS = (
    Step.PIN_STATE,
    Step.PERSIST_STATE,
    Step.CHANNEL_CREATE,
    Step.ACTIONS_CREATE,
    Step.MANIFEST_CREATE,
    Step.SAVEPOINT_BEGIN,
    Step.SAVEPOINT_FILES,
    Step.SAVEPOINT_CREATE,
    Step.SAVEPOINT_END,
    Step.PUBLISH_SINK,
    Step.SWEEP,
    Step.LOG_FOLD,
    Step.LOG_CHECKPOINT,
    Step.RESPONSE_CREATE,
    Step.FORGET,
)
"""The steps once every stage is held. ``tests/spark/test_stopping.py`` checks that a stop passes these steps and no others."""
FLUSH_STEPS = (Step.PLAN_BATCH, Step.STAGE_FILES, Step.STAGE_VERSION)
"""The steps of the batches with which a drain flushes, after ``DRAIN_BEGIN``. Earlier batches pass the same steps."""
DRAIN_STEPS = (Step.DRAIN_BEGIN, *FLUSH_STEPS, *STOP_STEPS)
"""The steps of a drain."""
