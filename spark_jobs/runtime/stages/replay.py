"""Computes staged batches again that are missing in a stage's state, only for the state.

This is necessary after a restore with a damaged file in the newest checkpoint's state. The stage then has the state of an older checkpoint
and the private log of the newest one. Each version of the log has the offset log entry that its batch was planned with. Planned again with
this entry, the batch reads the same rows and finds its version, so its staged rows stay.
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
    """Returns True if a stage has staged batches in a work directory that Spark has not planned there."""
    return _is_behind(SparkLog(work, checkpoint_directory(stage)), PrivateLog(work, log_directory(stage), ""))


def replay(stage: StageRun, rebuild: Callable[[StageRun], StageRun]) -> StageRun:
    """Computes batches again that a stage has staged and Spark has not planned. Idempotent: it goes on after a crash.

    Args:
        stage: The stage. Its channels have the same rows as at the first computation.
        rebuild: Builds the stage again, without inputs that had ended at the first computation of the planned batch.

    Returns:
        The stage to go on with.

    Raises:
        InterruptedRunError: A batch has another number of rows, because the stage is not deterministic; or its query failed.
        CorruptDocumentError: The private log does not have the plan of a batch.
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
            f"{stage.log.url} does not have the plan of batch {batch} of stage '{stage.stage.name}'.",
            exists="Staged and public rows stay.",
            safe="Nothing was staged.",
            remedy=f"Restore the damaged files from a copy of the home, or begin with a savepoint (--restore), or {BEGIN_ANEW}.",
            path=stage.log.url,
            batch=batch,
        )
    return staged.offsets
