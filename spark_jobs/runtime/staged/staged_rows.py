"""What a checkpoint has staged and not published, as a frame: for whoever audits rows before anyone else sees them."""

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoint.savepoint_files import staged_in
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.home import open_home
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.pending import chosen_manifest, pending_lines, sink_cut
from spark_jobs.publication.scratch_table import lasting_scratch_table
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import spark_path


def read_staged(spark: SparkSession, home: str | Files, sink: str, checkpoint: int | None = None) -> DataFrame:
    """The rows that publishing a checkpoint would add to a sink's table, with the table's columns.

    Of a sink with ``mode="complete"`` it is all that the table will have; of one with keys the rows as the stage returned
    them, before they are merged.

    It is what the manifests name, nothing else: rows of a round that is still under way are not in it, and once the checkpoint is
    published the frame is empty. Nothing in the home or in the table is changed. The frame can be read as long as this process
    lives and the staged files are there.

    Args:
        spark: A session with Delta.
        home: The home, or its URL.
        sink: The sink's name.
        checkpoint: The checkpoint; by default the newest valid one. Unpublished checkpoints before it count, as in a publication.

    Raises:
        RejectedError: No such checkpoint or sink, or its incarnation was closed.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: The table or a document is gone.
    """
    files = open_home(home) if isinstance(home, str) else home
    number = None if checkpoint is None else CheckpointId(checkpoint)
    cut = sink_cut(chosen_manifest(CheckpointStore(files), number), SinkName(sink))
    lines = pending_lines(files, SinkName(sink), number)
    directory = staged_in(cut)
    _, metadata, protocol = DeltaJvm(spark).snapshot(spark_path(directory))
    return spark.read.format("delta").load(str(lasting_scratch_table(directory, metadata, protocol, lines)))
