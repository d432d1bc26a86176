"""Tables with a hold: their refusals, and the time for which the other tables are published without them.

Nothing is stored. The time since which a table refuses rows and the amount that waits follow from the checkpoints that the table lacks. A
hold therefore lasts equally long for every publisher, and across attempts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import HoldLimits, Manifest
from spark_jobs.protocol.errors import (
    ConflictError,
    DeadlineExceededError,
    FencedError,
    NotFoundError,
    OutcomeUnknownError,
    SparkJobFailedError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import is_due, pending_manifests

_MAY_HEAL = (
    ConflictError,
    DeadlineExceededError,
    OutcomeUnknownError,
    SparkJobFailedError,
    StorageError,
    UnsupportedTableError,
)
_ENDS = (FencedError, NotFoundError)


def may_heal(error: StreamPipelineError) -> bool:
    """Returns True if a publication that failed with ``error`` is worth another try, because the cause can be removed.

    Missing or damaged files and rows of another incarnation do not come back.
    """
    return isinstance(error, _MAY_HEAL) and not isinstance(error, _ENDS)


def hold_ends(store: CheckpointStore, manifest: Manifest, sink: SinkName, now: datetime) -> datetime | None:
    """Returns the time until which other tables are published without one that refuses a checkpoint. None: all wait.

    Raises:
        StreamPipelineError: The missing checkpoints cannot be read, or can never become public.
    """
    limits, reached = manifest.sinks[sink].hold, _reached(manifest, sink)
    if limits is None:
        return None
    waiting = pending_manifests(store, manifest, sink, reached)
    due = [each for each in waiting if is_due(each, each.sinks[sink].publish)]
    ends = (due[0].completed_at if due else now) + timedelta(milliseconds=limits.time_ms)
    return ends if now < ends and _fits(limits, waiting, sink, reached) else None


def _reached(manifest: Manifest, sink: SinkName) -> CheckpointId | None:
    cut = manifest.sinks[sink]
    try:
        return open_table(cut.table).transaction_version(cut.app)
    except StreamPipelineError as error:
        if not may_heal(error):
            raise
        return cut.known_published


def _fits(limits: HoldLimits, waiting: Sequence[Manifest], sink: SinkName, reached: CheckpointId | None) -> bool:
    if limits.size_bytes is None or not waiting:
        return True
    carried = [each for each in waiting[0].sinks[sink].carried if each.last > (reached or 0)]
    files = [*(each.actions for each in carried), *(each.sinks[sink].actions for each in waiting)]
    return sum(each.size_bytes for each in files) <= limits.size_bytes


@dataclass
class Holding:
    """The tables that one publication leaves out.

    Args:
        store: Checkpoints of the home.
        manifest: Checkpoint that is published.
        allowed: True if tables may be left out.
    """

    store: CheckpointStore
    manifest: Manifest
    allowed: bool
    refused: dict[SinkName, StreamPipelineError] = field(default_factory=dict)
    """The error with which a table has refused the checkpoint, by sink."""

    @contextmanager
    def of(self, sink: SinkName) -> Iterator[None]:
        """Adds the sink to an error. Suppresses the error if the publication goes on without that sink."""
        try:
            yield
        except StreamPipelineError as error:
            error.evidence.setdefault("sink", sink)
            if not (self.allowed and may_heal(error)) or self._waits(sink):
                raise
            self.refused[sink] = error

    def _waits(self, sink: SinkName) -> bool:
        try:
            return hold_ends(self.store, self.manifest, sink, datetime.now(UTC)) is None
        except StreamPipelineError:
            return True  # the table's refusal is more precise
