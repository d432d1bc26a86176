"""Computes batches again that a stage has staged and its state does not hold, for the state alone.

That is so after a restore that has found a file of the newest checkpoint's state damaged: the stage's state is then that of an older
checkpoint, its private log that of the newest one. Each version of the log has the entry of Spark's offset log that its batch was planned
with. Planned again with it, the batch reads the same rows, and finds its version: what is staged stands.
"""

import logging
from collections.abc import Callable
from uuid import uuid4

from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_inputs import replaced_inputs
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def is_behind(work: Files, stage: StageName) -> bool:
    """Returns whether a stage has staged batches in a work directory that Spark has not planned there."""
    return _is_behind(SparkLog(work, checkpoint_directory(stage)), PrivateLog(work, log_directory(stage), ""))


def replay(stage: StageRun, rebuild: Callable[[StageRun], StageRun]) -> StageRun:
    """Computes the batches again that a stage has staged and Spark has not planned. Idempotent; after a crash it goes on.

    Args:
        stage: The stage. The channels that it reads hold what they held when the batches were first computed.
        rebuild: Builds the stage anew, without those of its inputs that had ended when the planned batch was first computed.

    Returns:
        The stage as it goes on.

    Raises:
        InterruptedRunError: A batch has come to another number of rows: the stage is not deterministic. Or its query failed.
        CorruptDocumentError: The private log does not say how a batch was planned.
    """
    log = stage.spark_log
    if not _is_behind(log, stage.log):
        return stage
    last = BatchId(stage.log.latest() - 1)
    if log.query_id() is None:
        log.begin(str(uuid4()))
    _LOG.info("stage %s: its state is computed again, by batches %d to %d", stage.stage.name, log.last_commit() + 1, last)
    while log.last_commit() < last:
        batch = BatchId(log.last_commit() + 1)
        if not log.pending():
            log.plan_again(batch, _offsets(stage, batch))
        if replaced_inputs(log, stage.arguments) - stage.ended:
            stage = rebuild(stage)
        stage.run_planned()
    return stage


def _is_behind(log: SparkLog, private: PrivateLog) -> bool:
    return private.latest() - 1 > log.last_offsets()


def _offsets(stage: StageRun, batch: BatchId) -> str:
    staged = stage.log.read(batch)
    if staged is None or not staged.offsets:
        raise CorruptDocumentError(
            f"{stage.log.url} does not say how batch {batch} of stage '{stage.stage.name}' was planned.",
            exists="What is staged and what is public stays.",
            safe="Nothing was staged.",
            remedy=f"Restore the damaged files from a copy of the home, or begin with a savepoint (--restore), or {BEGIN_ANEW}.",
            path=stage.log.url,
            batch=batch,
        )
    return staged.offsets
