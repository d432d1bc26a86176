"""The table of a stage with the rows that are staged for it: as it will be when the next checkpoint is public.

Stages that read tables get it. Rows that are public already are read at one version, and the staged rows are added or merged as their
publication will do it.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import AttemptDocument, Manifest
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.table_shape import distinct
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import WaitingRows, waiting_rows
from spark_jobs.publication.spark import merge_of
from spark_jobs.publication.sql_names import quoted
from spark_jobs.publication.staged_frame import staged_frame
from spark_jobs.runtime.spark.session import with_settings
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.storage.table_uris import spark_path


def table_so_far(
    stage: Stage, output: StageOutput, session: SparkSession, store: CheckpointStore, attempt: AttemptDocument
) -> DataFrame:
    """Returns the rows of a stage's table with those that are staged, as a batch frame with the columns that the stage returns.

    Args:
        stage: The stage. It has a sink.
        output: Its output.
        session: The session of the frame.
        store: The home's checkpoints.
        attempt: The live attempt.

    Raises:
        RejectedError: Staged rows cannot become public.
        StorageError: The storage fails.
    """
    sink, outlet = stage.sink, output.outlet
    if sink is None or outlet is None or outlet.public is None:
        raise ValueError(f"stage {stage.name} has no sink")
    newest, table = _newest(store, attempt), open_table(outlet.public.uri)
    begun = newest.stages.get(stage.name) if newest else None
    after, last = begun.batch if begun else NO_BATCH, BatchId(output.log.latest() - 1)
    staged = [{"add": add, "batch": batch.batch} for batch in output.log.between(after, last) for add in batch.adds]
    rewinds = attempt.rewinds(newest, sink.name, stage.name)
    waiting = WaitingRows() if newest is None or rewinds else waiting_rows(store, newest, sink.name, table)
    lines, replace = [*waiting.lines, *staged], waiting.replace or rewinds
    path, columns = spark_path(outlet.public.uri), [F.col(quoted(name)) for name in outlet.frame.columns]
    public = session.read.format("delta").option("versionAsOf", table.facts.version).load(path)
    if not lines:
        return public.where(F.lit(not replace)).select(*columns)
    if outlet.merge is None:
        _, metadata, protocol = DeltaJvm(session).snapshot(path)
        rows = staged_frame(session, outlet.public.uri, metadata, protocol, lines).select(*columns)
        return rows if replace else public.select(*columns).unionByName(rows)
    tombstones = None
    if outlet.merge.tombstones is not None:
        tombstones = session.read.format("delta").load(spark_path(outlet.merge.tombstones))
    staged_for = output.log.staged_for()
    shapes = distinct([*waiting.shapes, *(staged_for.shapes(after, last) if staged_for else ())])
    with with_settings(session, outlet.merge.settings):
        merge = merge_of(session, sink.mode, outlet.merge, lines, shapes, table.facts.shape, replace=replace)
        return merge.merged(public, tombstones).select(*columns)


def _newest(store: CheckpointStore, attempt: AttemptDocument) -> Manifest | None:
    """Returns the newest checkpoint of an attempt, or the one that it goes on from."""
    head = store.head()
    if head is not None and head.attempt == attempt.attempt:
        return head
    return None if attempt.restored_from is None else store.manifest(attempt.restored_from)
