"""The staged and unpublished rows of a checkpoint as a frame, for audits before they become public."""

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_files import staged_in
from spark_jobs.control.home import open_home
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.pending import chosen_manifest, pending_lines, sink_cut
from spark_jobs.publication.staged_frame import staged_frame
from spark_jobs.runtime.spark.hadoop_clients import check_clients
from spark_jobs.runtime.spark.session import with_s3
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import spark_path


def read_staged(spark: SparkSession, home: str | Files, sink: str, checkpoint: int | None = None) -> DataFrame:
    """Returns the rows that publishing a checkpoint would add to a sink's table, with the table's columns.

    For a sink with ``mode="complete"`` these are all future rows of the table. For a sink with keys these are the rows as the stage
    returned them, before they are merged.

    The frame only has rows of checkpoints, not those of a round that is still running. After the checkpoint is published, the frame is
    empty. Nothing in the home or in the table is changed. The frame can be read while the staged files exist.

    Args:
        spark: A session with Delta.
        home: The home, or its URL.
        sink: Name of the sink.
        checkpoint: Number of the checkpoint; by default the newest valid one. Earlier unpublished checkpoints are included, as in a
            publication.

    Raises:
        RejectedError: There is no such checkpoint or sink, or its incarnation was closed.
        MissingRequirementError: The rows are in a store for which Spark has no client. The error names its package.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: The table or a document is missing.
    """
    files = open_home(home) if isinstance(home, str) else home
    number = None if checkpoint is None else CheckpointId(checkpoint)
    cut = sink_cut(chosen_manifest(CheckpointStore(files), number), SinkName(sink))
    lines = pending_lines(files, SinkName(sink), number)
    directory = staged_in(cut)
    check_clients(spark, [directory])
    _, metadata, protocol = DeltaJvm(with_s3(spark)).snapshot(spark_path(directory))
    return staged_frame(spark, directory, metadata, protocol, lines)
