"""Changes the number of a stage's state partitions: Flink's rescaling, with Spark's own repartitioning.

Spark rewrites all of a query's state, and records it as a batch without input. This is done in a work directory under construction. After
a crash it is built again. Checkpoints and savepoints are never changed.
"""

import logging

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import InterruptedRunError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_jvm import java_message
from spark_jobs.runtime.spark.session import SHUFFLE_PARTITIONS, session_for_run, spark_failures
from spark_jobs.runtime.spark.spark_facts import repartition_state
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_CANNOT = "[STATE_REPARTITION_"
"""The prefix of the error conditions with which Spark refuses a kind of state. Other errors are failures."""


def rescale_stage(spark: SparkSession, work: Files, partitions: int, name: StageName, cut: StageCut) -> None:
    """Changes the number of state partitions of a stage that is restored and not running.

    Does nothing if the stage keeps no state or already has this number.

    Args:
        spark: A session of the application.
        work: Work directory under construction.
        partitions: New number of partitions.
        name: The stage.
        cut: Cut of the stage in the restored checkpoint.

    Raises:
        RejectedError: Spark cannot do it with this state, or not at all.
        InterruptedRunError: The change has failed for another reason. The next attempt repeats it.
    """
    log = SparkLog(work, checkpoint_directory(name))
    if cut.drained or not log.has_state() or log.pending():
        return
    before = int(log.offsets(log.last_commit()).header["conf"][SHUFFLE_PARTITIONS])
    if before == partitions:
        return
    if log.last_commit() < cut.batch:
        raise _failure(name, before, partitions, "it must first be computed again, in the old number of partitions")
    session = session_for_run(spark)
    _ = session.streams  # starts the coordinator of state stores, which a driver lacks before its first query
    with step(Step.RESCALE):
        try:
            repartition_state(session, f"{work.url}/{log.directory}", partitions)
        except spark_failures() as error:
            raise _failure(name, before, partitions, java_message(error)) from error
    _LOG.info("the state of stage %s is in %d partitions, it was in %d", name, partitions, before)


def _failure(stage: StageName, before: int, partitions: int, why: str) -> StreamPipelineError:
    kind = RejectedError if why.startswith(_CANNOT) else InterruptedRunError
    return kind(
        f"Spark has not changed the state of stage '{stage}' from {before} to {partitions} partitions: {why.splitlines()[0]}",
        exists="The checkpoint is unchanged. The new work directory is not used.",
        safe="Nothing else was changed.",
        remedy=f"Start it again. With --state-partitions {before} (state_partitions={before}) it continues with the old number.",
        stage=stage,
        state_partitions=partitions,
    )
