"""Blocked publications: the waiting tables, and the time until which their staged rows are safe.

``VACUUM`` deletes files that are older than the table's retention and that the table does not name. Files of staged rows are such
files.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_files import staged_in
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import StreamPipelineError, UnsupportedTableError
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import is_due, ordered_sinks, pending_lines, pending_manifests
from spark_jobs.storage.files import Files

_OLD_SHARE, _TOO_OLD_SHARE = 0.5, 0.9
"""Shares of a table's retention. After the first, waiting rows are reported; after the second, they end the pipeline."""


def waiting_sinks(manifest: Manifest) -> list[SinkName]:
    """Returns the sinks that a checkpoint should be public in but is not. A table that cannot be read counts as waiting."""
    due = [sink for sink in ordered_sinks(manifest) if is_due(manifest, manifest.sinks[sink].publish)]
    return [sink for sink in due if not _has_reached(manifest, sink)]


def first_waiting(files: Files, manifest: Manifest, waiting: Iterable[SinkName]) -> Manifest:
    """Returns the oldest checkpoint up to ``manifest`` that these sinks should be public in but are not.

    If a table cannot be read, only ``manifest`` counts as missing in it.
    """
    store, found = CheckpointStore(files), [manifest]
    for sink in waiting:
        with suppress(StreamPipelineError):
            cut = manifest.sinks[sink]
            pending = pending_manifests(store, manifest, sink, open_table(cut.table).transaction_version(cut.app))
            found += [each for each in pending if sink in each.sinks and is_due(each, each.sinks[sink].publish)]
    return min(found, key=lambda each: each.checkpoint)


def _has_reached(manifest: Manifest, sink: SinkName) -> bool:
    cut = manifest.sinks[sink]
    try:
        return (open_table(cut.table).transaction_version(cut.app) or 0) >= manifest.checkpoint
    except StreamPipelineError:
        return False


@dataclass(frozen=True)
class StagedRows:
    """Rows that wait in the directory of a table, where a VACUUM may delete them.

    Args:
        sink: Sink of the rows.
        table: The table's URI.
        since: Time at which the oldest row was staged.
        kept_for: The table's retention: the time for which VACUUM keeps files that the table does not name.
    """

    sink: SinkName
    table: str
    since: datetime
    kept_for: timedelta

    @property
    def kept_until(self) -> datetime:
        """Returns the time from which a VACUUM may delete the oldest rows."""
        return self.since + self.kept_for

    def is_old(self, now: datetime) -> bool:
        """Returns True if the rows have waited so long that people should be warned."""
        return now >= self.since + self.kept_for * _OLD_SHARE

    def check(self, checkpoint: CheckpointId, now: datetime) -> None:
        """Raises an error if the oldest rows may be deleted soon.

        Raises:
            UnsupportedTableError: A VACUUM may delete the rows soon. No row is lost yet.
        """
        if now < self.since + self.kept_for * _TOO_OLD_SHARE:
            return
        since, until = (f"{moment:%Y-%m-%d %H:%M:%SZ}" for moment in (self.since, self.kept_until))
        raise UnsupportedTableError(
            f"Sink {self.sink}: rows of checkpoint {checkpoint} or before were staged at {since} and are not public. From "
            f"{until} on a VACUUM of table {self.table} may delete them.",
            exists=f"The checkpoint is complete. The table keeps files that it does not name for {self.kept_for}.",
            safe="No row was lost.",
            remedy="Remove the cause of the block (spark-jobs status names it), or let the table keep its files longer (ALTER TABLE … "
            "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 30 days')). Then start again. Do not run VACUUM before.",
            sink=self.sink,
            table=self.table,
            checkpoint=checkpoint,
            kept_until=until,
        )


def staged_rows(files: Files, manifest: Manifest, sink: SinkName) -> StagedRows | None:
    """Returns the waiting rows of a sink in its table's directory. Returns None if no rows wait, or if they wait in the home.

    Raises:
        StreamPipelineError: The table or a document cannot be read.
    """
    cut = manifest.sinks[sink]
    if staged_in(cut) != cut.table:
        return None
    written_ms = [line["add"]["modificationTime"] for line in pending_lines(files, sink, manifest.checkpoint)]
    if not written_ms:
        return None
    since = datetime.fromtimestamp(min(written_ms) / 1000, UTC)
    return StagedRows(sink, cut.table, since, open_table(cut.table).keeps_deleted_files)
