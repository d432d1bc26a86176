"""Folds and trims private logs: never beyond a batch that a consumer may read again or that a next checkpoint may need.

Two rules keep every reader correct:

1. A log is *folded* (segments replace its versions, and Delta readers begin at a checkpoint) only up to the batch that every consumer has
   read. A consumer that has not begun prevents all folding.
2. A folded batch is *forgotten* only if the parent of a completed checkpoint contains it. The checkpoint itself is not enough: if its
   manifest turns out corrupt, the next one is cut from the parent again.
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
"""The number of batches that a running stage folds at once. A fold costs as much as some batches, and listing the log costs, too."""

_PAST_ALL = 2**62
"""The position of a replaced stream whose stage has ended: it has read the whole log."""


@dataclass(frozen=True)
class ConsumerCut:
    """The cut of a channel's consumer, in versions of the private log."""

    reads_from: int
    """The oldest version that it may read again. A query plans its last committed batch again when it starts."""
    has_read_to: int
    """The first version that it has not read completely."""


@dataclass(frozen=True)
class Consumer:
    """One stream of a query that reads a private log."""

    spark_log: SparkLog
    stream: int
    """The number of the stream in Spark's offset log."""
    begins: BatchId = NO_BATCH
    """The last batch before the batches that it reads."""

    def consumed(self) -> BatchId:
        """Returns the last batch of the log's stage whose rows the query has all committed."""
        return BatchId(max(self._version_after(self.spark_log.last_commit()) - 2, NO_BATCH))

    def reads_from(self) -> int:
        """Returns the oldest version that the query may read again."""
        return self._version_after(BatchId(self.spark_log.last_commit() - 1))

    def cut(self, last: BatchId) -> ConsumerCut:
        """Returns the cut of the query at batch ``last``. Call it at the cut.

        Raises:
            NotFoundError: Spark has purged the batch, a hundred batches later. Cut again.
        """
        return ConsumerCut(self._version_after(BatchId(last - 1)), self._version_after(last))

    def _version_after(self, batch: BatchId) -> int:
        line = NO_OFFSET if batch < 0 else self.spark_log.offsets(batch).sources[self.stream]
        if line == NO_OFFSET:
            return first_version(self.begins)
        position = channel_position(line)
        return _PAST_ALL if position is None else position.version


def fold_consumed(log: PrivateLog, consumers: Iterable[Consumer], batches_min: int = FOLD_BATCHES) -> None:
    """Folds the batches that no consumer reads any more, if there are at least ``batches_min``. Idempotent.

    Args:
        log: Log of a stage.
        consumers: All streams that read it.
        batches_min: Minimum number of batches to fold.
    """
    newest = log.latest() - 1
    if newest - 1 - log.folded() < batches_min:  # the newest batch is never folded
        return
    last = min((newest - 1, *(consumer.reads_from() - 2 for consumer in consumers)))
    if last - log.folded() >= batches_min:
        log.fold(BatchId(last))


def trim(
    log: PrivateLog,
    consumers: Iterable[Consumer],
    parent_batch: BatchId,
    directory: Files,
    named: Container[str],
    left_out: Container[str] = (),
) -> None:
    """Trims a log after a completed checkpoint. Idempotent.

    Args:
        log: Log of a stage.
        consumers: All streams that read it.
        parent_batch: Cut of the stage in the checkpoint's parent; -1 without a parent.
        directory: Directory of the stage's files. Files that only the log names are deleted with their batches: those of a channel, and
            files that were packed or superseded before a checkpoint named them.
        named: Files that checkpoints name, of all batches in the log. They may be public, and stay.
        left_out: Names of files that losses have left out. They stay, too.
    """

    def discard(staged: StagedBatch) -> None:
        for path in (unquote(add["path"]) for add in staged.adds):
            if path not in named and path.rpartition("/")[2] not in left_out:
                directory.delete(path)
                forget_checksum(directory, path)

    fold_consumed(log, consumers, batches_min=1)
    log.forget(parent_batch, discard)
