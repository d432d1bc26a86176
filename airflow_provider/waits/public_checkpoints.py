"""Finds checkpoints of a home that were published since the last search. It reads the tables, because the home does not record this."""

import re
from dataclasses import dataclass, replace

from airflow_provider.waits.checkpoints import Listing
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import CheckpointId, PipelineUuid
from spark_jobs.publication.evidence import ConsistentVersions, published_checkpoints, versions_with
from spark_jobs.publication.pending import CLOSED
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import table_files

_COMMIT = re.compile(r"\d{20}\.json")


@dataclass(frozen=True)
class PublicCheckpoint:
    """A checkpoint that is public in every table of its pipeline, with its own versions."""

    pipeline: PipelineUuid
    tables: ConsistentVersions
    """The versions of the tables right after the checkpoint became public."""

    @property
    def checkpoint(self) -> CheckpointId:
        """The number of the checkpoint."""
        return self.tables.checkpoint


class PublicationSearch:
    """Searches a home for checkpoints that have become public. One thread at a time.

    Without staged rows a search reads nothing. Otherwise it lists the tables' logs, and opens the tables only if a log has grown.

    Args:
        files: The home.
        pipeline: The pipeline whose checkpoints were found before; None if there are none.
        seen: The newest checkpoint that was found before.
    """

    def __init__(self, files: Files, pipeline: PipelineUuid | None, seen: CheckpointId | None) -> None:
        self._store, self._ledger = CheckpointStore(files), LossLedger(files)
        self._pipeline, self._seen = pipeline, seen
        self._listing: Listing | None = None
        self._newest: Manifest | None = None
        self._looked_at: object = None

    def find(self, listing: Listing) -> list[PublicCheckpoint]:
        """Returns the public checkpoints that were not found before, oldest first.

        The first search without ``seen`` returns only the newest one. A checkpoint that became public together with a later one is left
        out, because the later one includes it.

        Raises:
            StorageError: The home or a table cannot be read.
        """
        if listing != self._listing:
            self._newest = next((m for k in reversed(listing.checkpoints) if (m := self._manifest(k)) is not None), None)
            self._listing = listing
        newest = self._newest
        if newest is None:
            return []
        if newest.pipeline != self._pipeline:  # a new home was made at the same place
            self._pipeline, self._seen = newest.pipeline, None
        if self._seen is not None and newest.checkpoint <= self._seen:
            return []
        logs = (newest.checkpoint, *(_newest_commit(cut.table) for cut in newest.sinks.values()))
        if logs == self._looked_at:
            return []
        found = self._public(newest, [k for k in listing.checkpoints if self._seen is None or k > self._seen])
        self._looked_at = logs
        if found:
            self._seen = found[-1].checkpoint
        return found

    def _public(self, newest: Manifest, unseen: list[CheckpointId]) -> list[PublicCheckpoint]:
        reached = {sink: number or CheckpointId(0) for sink, number in published_checkpoints(newest).items()}
        waited_for = [number for sink, number in reached.items() if sink not in newest.held]
        limit = max(unseen) if CLOSED in reached.values() else min(waited_for) if waited_for else max(reached.values(), default=0)
        found: list[PublicCheckpoint] = []
        for number in reversed([k for k in unseen if k <= limit]):
            manifest = self._manifest(number)
            if manifest is not None and (tables := versions_with(manifest)):
                tables = replace(tables, losses=self._ledger.lacking(manifest))
                found.insert(0, PublicCheckpoint(manifest.pipeline, tables))
                if self._seen is None:
                    break
        return found

    def _manifest(self, number: CheckpointId) -> Manifest | None:
        """Returns a manifest; None if it was deleted or is corrupt."""
        try:
            return self._store.manifest(number)
        except (CorruptDocumentError, NotFoundError):
            return None


def _newest_commit(table: str) -> str | None:
    """Returns the name of the newest commit in a table's log, which changes with each commit; None if the log has none."""
    return max(filter(_COMMIT.fullmatch, table_files(table).names("_delta_log")), default=None)
