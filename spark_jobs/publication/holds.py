"""Tables with a hold: what they refuse, and how long the other tables are published without them.

Nothing is remembered: how long a table has refused its rows, and how much waits for it, follows from the checkpoints that it lacks. So a
hold lasts as long whoever publishes, and across attempts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from spark_jobs.checkpoint.store import CheckpointStore
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
    """Returns whether a publication that has failed with ``error`` is worth another try: somebody may undo what the table refuses.

    What is gone, damaged, or published by another incarnation does not come back.
    """
    return isinstance(error, _MAY_HEAL) and not isinstance(error, _ENDS)


def hold_ends(store: CheckpointStore, manifest: Manifest, sink: SinkName, now: datetime) -> datetime | None:
    """Returns until when the other tables are published without one that refuses a checkpoint; None: they wait with it.

    Raises:
        StreamPipelineError: What the table lacks cannot be read, or can never become public.
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
    """The tables that one publication goes on without.

    Args:
        store: The home's checkpoints.
        manifest: The checkpoint that is published.
        allowed: Whether it may go on without any.
    """

    store: CheckpointStore
    manifest: Manifest
    allowed: bool
    refused: dict[SinkName, StreamPipelineError] = field(default_factory=dict)
    """By sink what its table has refused the checkpoint with."""

    @contextmanager
    def of(self, sink: SinkName) -> Iterator[None]:
        """Lets an error say which sink it is about; takes it up if the publication goes on without that sink."""
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
            return True  # what the table has refused says more
