"""When private logs are folded and trimmed: never past what a consumer may read again, never what a next checkpoint may need.

Two bounds keep every reader whole:

1. A log is *folded* (segments take the place of its versions, and Delta readers begin at a checkpoint) only up to what every consumer has
   left behind. A consumer that has not begun holds all of it back.
2. A folded batch is *forgotten* only if the parent of a completed checkpoint holds it. Not the checkpoint itself: should its manifest turn
   out corrupt, the next one is cut from the parent again.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import channel_position, first_version
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.storage.checksums import forget_checksum
from spark_jobs.storage.files import Files

FOLD_BATCHES = 1_000
"""While a stage runs, this many batches are folded at once: a fold costs as much as some batches, and listing the log costs as well."""

_PAST_ALL = 2**62
"""Where a stream is that has read all of a log and was replaced: its stage has ended."""


@dataclass(frozen=True)
class ConsumerCut:
    """Where a consumer of a channel is cut, in versions of the private log."""

    reads_from: int
    """The oldest version that it may read again. A query that starts plans its last committed batch once more."""
    has_read_to: int
    """The first version that it has not taken whole."""


@dataclass(frozen=True)
class Consumer:
    """One stream of a query that reads a private log."""

    spark_log: SparkLog
    stream: int
    """Which of the query's streams: its place in Spark's offset log."""
    begins: BatchId = NO_BATCH
    """The last batch before those that it reads."""

    def consumed(self) -> BatchId:
        """The last batch of the log's stage of which the query has committed every row."""
        return BatchId(max(self._version_after(self.spark_log.last_commit()) - 2, NO_BATCH))

    def reads_from(self) -> int:
        """The oldest version that the query may read again."""
        return self._version_after(BatchId(self.spark_log.last_commit() - 1))

    def cut(self, last: BatchId) -> ConsumerCut:
        """Where the query is that is cut at batch ``last``; to be asked at the cut.

        Raises:
            NotFoundError: Spark has purged the batch, a hundred batches later: cut again.
        """
        return ConsumerCut(self._version_after(BatchId(last - 1)), self._version_after(last))

    def _version_after(self, batch: BatchId) -> int:
        line = NO_OFFSET if batch < 0 else self.spark_log.offsets(batch).sources[self.stream]
        if line == NO_OFFSET:
            return first_version(self.begins)
        position = channel_position(line)
        return _PAST_ALL if position is None else position.version


def fold_consumed(log: PrivateLog, consumers: Iterable[Consumer], batches_min: int = FOLD_BATCHES) -> None:
    """Folds what no consumer reads any more, if it is at least ``batches_min``; idempotent.

    Args:
        log: The log of a stage.
        consumers: Everything that streams from it.
        batches_min: Fewer are left as they are.
    """
    newest = log.latest() - 1
    if newest - 1 - log.folded() < batches_min:  # the newest batch is never folded
        return
    last = min((newest - 1, *(consumer.reads_from() - 2 for consumer in consumers)))
    if last - log.folded() >= batches_min:
        log.fold(BatchId(last))


def trim(log: PrivateLog, consumers: Iterable[Consumer], parent_batch: BatchId, directory: Files, named: Container[str]) -> None:
    """Bounds a log after a completed checkpoint; idempotent.

    Args:
        log: The log of a stage.
        consumers: Everything that streams from it.
        parent_batch: Where the checkpoint's parent has cut the stage; -1 where there is no parent.
        directory: Where the stage's files are. Those that only the log names go with their batches: a channel's, and what was packed or
            superseded before a checkpoint named it.
        named: The files that checkpoints name, of all batches that the log has not forgotten: they may be public, and stay.
    """

    def discard(staged: StagedBatch) -> None:
        for path in (unquote(add["path"]) for add in staged.adds):
            if path not in named:
                directory.delete(path)
                forget_checksum(directory, path)

    fold_consumed(log, consumers, batches_min=1)
    log.forget(parent_batch, discard)
