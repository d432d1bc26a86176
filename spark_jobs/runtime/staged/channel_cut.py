"""The part of a stage's channel in a checkpoint, and the private log that a restore builds from it.

The rows in flight are not written again: a line of the private log names their files. So a file in a line of a retained checkpoint must not
be deleted, even after every consumer has read it; see :func:`~spark_jobs.checkpoint.retention.in_flight_from`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.ids import BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.runtime.staged.log_folding import ConsumerCut
from spark_jobs.runtime.staged.private_log import LogIdentity, PrivateLog, StagedBatch, batch_of, line_of
from spark_jobs.storage.files import Files


def log_directory(stage: StageName) -> str:
    """Returns the directory of a stage's private log in a work directory."""
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
    """Writes the part of a stage's private log that a restore needs. Durable on return.

    The stage and its consumers may have run on for any number of batches. The log may have been folded in the meantime, but not trimmed:
    only a completed checkpoint does that.

    Args:
        store: Store of the checkpoint.
        checkpoint: Number of the future manifest.
        stage: The stage.
        log: Its private log.
        batch: Cut of the stage.
        consumers: Cuts of all streams that read the log.
        parent: Cut of the stage in the parent checkpoint; None if it has none. The file has all batches since.

    Raises:
        CorruptDocumentError: The log does not have a batch any more that a consumer may read again.
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
    """Builds the private log of a stage in a work directory without one. Durable on return.

    Consumers of the old log go on in this one: the table id and the version numbers are the same.

    Args:
        work: The work directory.
        stage: The stage.
        cut: Channel cut of the checkpoint.
        lines: Lines from :meth:`~spark_jobs.checkpoint.checkpoint_store.CheckpointStore.read_channel`.
        first: First batch of the log; by default that of ``cut``.
    """
    log = PrivateLog(work, log_directory(stage), cut.staged_in)
    begin = cut.first if first is None else first
    staged: list[StagedBatch] = [batch_of(line) for line in lines if line["batch"] >= begin]
    log.rebuild(LogIdentity(cut.metadata, cut.protocol, cut.staged_for), staged)
    return log
