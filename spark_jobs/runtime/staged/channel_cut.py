"""What a checkpoint holds of a stage's channel, and the private log that is built from it elsewhere.

The rows in flight are not written again: a line of the private log names their files. So a file that a line of a retained checkpoint names
may not go, even if every consumer has long left it behind; see :func:`~spark_jobs.checkpoint.retention.in_flight_from`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.ids import BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.runtime.staged.log_folding import ConsumerCut
from spark_jobs.runtime.staged.private_log import LogIdentity, PrivateLog, StagedBatch, batch_of, line_of
from spark_jobs.storage.files import Files


def log_directory(stage: StageName) -> str:
    """Where in a work directory the private log of a stage is."""
    return f"stages/{stage}/log"


def cut_channel(
    store: CheckpointStore,
    checkpoint: CheckpointId,
    stage: StageName,
    log: PrivateLog,
    batch: BatchId,
    consumers: Sequence[ConsumerCut],
    parent: BatchId | None = None,
) -> ChannelCut:
    """What a restore needs of a stage's private log; durable on return.

    The stage and its consumers may have run on for any number of batches. The log may have been folded meanwhile, but not trimmed: only
    a completed checkpoint does that.

    Args:
        store: Where the checkpoint will be.
        checkpoint: The number that the manifest will have.
        stage: The stage.
        log: Its private log.
        batch: Where the stage is cut.
        consumers: Where everything that streams from the log is cut.
        parent: Where the parent checkpoint has cut the stage; None if it has not. The file has all batches since.

    Raises:
        CorruptDocumentError: The log has forgotten a batch that a consumer may read again.
    """
    last = BatchId(min(batch, log.latest() - 1))
    reads_from = min((consumer.reads_from for consumer in consumers), default=last + 1)
    first = BatchId(max(min(reads_from, last + 1) - 2, 0))
    since = first if parent is None else min(first, BatchId(parent + 1))
    staged = list(log.between(BatchId(since - 1), last))
    read_to = min((consumer.has_read_to for consumer in consumers), default=last + 2)
    in_flight = [each for each in staged if each.batch + 1 >= read_to]
    path, digest = store.write_channel(checkpoint, stage, map(line_of, staged))
    identity = log.identity()
    return ChannelCut(
        metadata=identity.metadata,
        protocol=identity.protocol,
        staged_for=identity.staged_for,
        staged_in=log.table_url,
        path=path,
        sha256=digest,
        first=first,
        last=last,
        in_flight_rows=sum(each.rows for each in in_flight),
        in_flight_size_bytes=sum(int(add["size"]) for each in in_flight for add in each.adds),
    )


def rebuild_log(
    work: Files, stage: StageName, cut: ChannelCut, lines: Iterable[dict[str, Any]], first: BatchId | None = None
) -> PrivateLog:
    """Builds the private log of a stage in a work directory that has none; durable on return.

    Whoever consumed the old one reads on in this one: the table id and the numbers of the versions are the same.

    Args:
        work: The work directory.
        stage: The stage.
        cut: What the checkpoint holds of it.
        lines: As :meth:`~spark_jobs.checkpoint.store.CheckpointStore.read_channel` has returned them.
        first: The first batch that the log is to have; that of ``cut`` unless given.
    """
    log = PrivateLog(work, log_directory(stage), cut.staged_in)
    begin = cut.first if first is None else first
    staged: list[StagedBatch] = [batch_of(line) for line in lines if line["batch"] >= begin]
    log.rebuild(LogIdentity(cut.metadata, cut.protocol, cut.staged_for), staged)
    return log
