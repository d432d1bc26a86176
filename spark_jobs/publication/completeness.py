"""Finds the event time up to which a public table is complete.

The watermark decides, and of all watermarks the one that is public: a checkpoint knows the watermark that the last batch of each stage has
seen, and the table's own log knows its newest checkpoint. Spark drops later rows for windows that have ended by then. So no checkpoint
after it adds such rows.

Each publication writes that time into the user metadata of its own commit, for readers that know no home. A commit that changes a table
property makes the transactions of other writers fail, also their appends (docs/adr/0010-who-publishes-a-table.md).
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.storage.files import Files

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CompleteUntil(NamedTuple):
    """The event time up to which a table is complete."""

    checkpoint: CheckpointId
    """The newest checkpoint that is public in the table."""
    time: datetime
    table: str
    """The URI of the table."""


def complete_until(files: Files, sink: SinkName) -> CompleteUntil | None:
    """Returns the event time up to which the table of a sink is complete; None if nothing is public, or no watermark has moved.

    Raises:
        RejectedError: The newest checkpoint has no such sink, or its stage keeps no state, so that Spark never drops late rows.
        NotFoundError: The table does not exist.
        StorageError: The storage fails.
    """
    manifests = CheckpointStore(files).manifests()[::-1]
    if not manifests:
        return None
    head = manifests[0]
    _check_drops_late_rows(files, head, sink)
    cut = head.sinks[sink]
    reached = open_table(cut.table).transaction_version(cut.app)
    if reached is None or reached == CLOSED:
        return None
    for manifest in manifests:
        own = manifest.sinks.get(sink)
        if own is not None and own.app == cut.app and manifest.checkpoint <= reached:
            seen_ms = _seen_ms(manifest.stages[own.stage])
            return CompleteUntil(manifest.checkpoint, _time(seen_ms), cut.table) if seen_ms > 0 else None
    return None


def complete_until_of(manifest: Manifest, sink: SinkName) -> datetime | None:
    """Returns the event time up to which the table of a sink is complete once this checkpoint is public; None if there is none."""
    stage = manifest.stages.get(manifest.sinks[sink].stage)
    if stage is None or not _drops_late_rows(stage):
        return None
    seen_ms = _seen_ms(stage)
    return _time(seen_ms) if seen_ms > 0 else None


def _time(seen_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=seen_ms)


def _seen_ms(stage: StageCut) -> int:
    """Returns the watermark up to which all rows of a stage are staged; 0 if none is known.

    A drain flushes everything, but the time after the newest event is not over. So its own watermark does not count.
    """
    if stage.drain_batches:
        return stage.watermark_before_drain_ms or 0
    return min(stage.applied_watermark_ms or 0, stage.watermark_ms)


def _drops_late_rows(stage: StageCut) -> bool:
    return stage.drain_batches > 0 or any(file.path.startswith("state/") for file in stage.files)


def _check_drops_late_rows(files: Files, head: Manifest, sink: SinkName) -> None:
    cut = head.sinks.get(sink)
    if cut is None:
        raise RejectedError(
            f"The pipeline in {files.url} has no sink {sink}.",
            exists=f"Its sinks are {', '.join(sorted(head.sinks)) or 'none'}.",
            remedy="Correct the name of the sink.",
            home=files.url,
            sink=sink,
        )
    stage = head.stages[cut.stage]
    if stage.batch >= 0 and not _drops_late_rows(stage):
        raise RejectedError(
            f"Stage {cut.stage} keeps no state, so its table {cut.table} is complete at no time: late rows are added, too.",
            remedy="Name the sink of a stage with windows, or another operator that drops late rows.",
            home=files.url,
            sink=sink,
        )
