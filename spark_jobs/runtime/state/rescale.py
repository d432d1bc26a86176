"""The state of a stage in another number of partitions: Flink's rescaling, with the repartitioning that Spark has of its own.

Spark rewrites all of a query's state, and records it as a batch that has read nothing. It is done in a work directory that is still being
built: one that a crash leaves half done is built again, and neither the checkpoint nor a savepoint is ever touched.
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
from spark_jobs.storage.files import Files, local_path

_LOG = logging.getLogger(__name__)
_CANNOT = "[STATE_REPARTITION_"
"""How Spark names what it refuses: a state of another kind, not a failure on the way."""


def rescale_stage(spark: SparkSession, work: Files, partitions: int, name: StageName, cut: StageCut) -> None:
    """Brings the state of a stage, which is restored and not running, into another number of partitions.

    Does nothing if the stage keeps no state, or has as many already.

    Args:
        spark: A session of the application.
        work: The work directory that is being built.
        partitions: How many.
        name: The stage.
        cut: Of the checkpoint that the directory is built from.

    Raises:
        RejectedError: Spark cannot do it, or not with this state.
        InterruptedRunError: It has failed for another reason: the next attempt does it again.
    """
    log = SparkLog(work, checkpoint_directory(name))
    if cut.drained or not log.has_state() or log.pending():
        return
    before = int(log.offsets(log.last_commit()).header["conf"][SHUFFLE_PARTITIONS])
    if before == partitions:
        return
    if log.last_commit() < cut.batch:
        raise _failure(name, before, partitions, "it is computed again first, in as many partitions as before")
    session = session_for_run(spark)
    _ = session.streams  # starts what the state's own writers report to, which a driver lacks before its first query
    with step(Step.RESCALE):
        try:
            repartition_state(session, str(local_path(work, log.directory)), partitions)
        except spark_failures() as error:
            raise _failure(name, before, partitions, java_message(error)) from error
    _LOG.info("the state of stage %s is in %d partitions, it was in %d", name, partitions, before)


def _failure(stage: StageName, before: int, partitions: int, why: str) -> StreamPipelineError:
    kind = RejectedError if why.startswith(_CANNOT) else InterruptedRunError
    return kind(
        f"Spark has not brought the state of stage '{stage}' from {before} into {partitions} partitions: {why.splitlines()[0]}",
        exists="The checkpoint is as it was; the work directory that was being built is not used.",
        safe="Nothing else was changed.",
        remedy=f"Start it again; with --state-partitions {before} (state_partitions={before}) it goes on as it was.",
        stage=stage,
        state_partitions=partitions,
    )
